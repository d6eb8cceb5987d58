// A choice shows what belongs to it and hides the rest; an axis is linear or logarithmic. Without a script everything is shown.
(function () {
  document.querySelectorAll("[data-choose]").forEach(function (group) {
    const select = group.querySelector("select");
    const axes = Array.from(group.querySelectorAll("input[type=radio]"));
    const parts = Array.from(group.querySelectorAll("[data-part]"));
    function logarithmic(on) {
      axes.forEach(function (input) { input.checked = (input.value === "log") === on; });
      parts.forEach(function (part) { part.classList.toggle("log", on); });
    }
    function show() {
      parts.forEach(function (part) { part.hidden = part.dataset.part !== select.value; });
      const shown = parts.find(function (part) { return !part.hidden; });
      if (axes.length && shown) { logarithmic(shown.dataset.start === "log"); }
    }
    if (select) { select.addEventListener("change", show); show(); }
    axes.forEach(function (input) { input.addEventListener("change", function () { logarithmic(input.value === "log"); }); });
    group.querySelectorAll(".controls").forEach(function (c) { c.hidden = false; });
  });
})();
