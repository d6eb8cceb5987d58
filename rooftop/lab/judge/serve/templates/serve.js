// Colours what is typed, and follows a job. Without a script the pages work: the text is plain, and a job's page loads itself again.
(function () {
  const MOST = 200000; // characters that are coloured while one types
  document.querySelectorAll(".editor").forEach(function (editor) {
    const area = editor.querySelector("textarea");
    const shown = editor.querySelector("pre");
    function draw() {
      const on = area.value.length < MOST;
      editor.classList.toggle("on", on);
      shown.textContent = "";
      if (on) {
        const all = document.createElement("span"); // the style makes a line of each child
        all.append(window.rooftop.coloured(area.value + "\n"));
        shown.append(all);
      }
      follow();
    }
    function follow() { shown.scrollTop = area.scrollTop; shown.scrollLeft = area.scrollLeft; }
    area.addEventListener("input", draw);
    area.addEventListener("scroll", follow);
    draw();
  });
  document.querySelectorAll("[data-events]").forEach(function (box) {
    const events = new EventSource(box.dataset.events);
    events.addEventListener("progress", function (event) {
      const said = JSON.parse(event.data);
      box.querySelector("[role=status]").textContent = said.text;
      if (said.over) { events.close(); location.reload(); }
    });
    window.addEventListener("pagehide", function () { events.close(); });
  });
})();
