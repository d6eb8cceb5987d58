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

  // Sources come as plain text; lines are numbered and coloured when they are first looked at.
  const WORDS = new Set(("alignas auto bool break case char class const constexpr continue def default do double elif else enum except explicit extern "
    + "False float for from goto half if import in inline int is lambda long namespace None not operator or and private public register return short "
    + "signed sizeof static static_cast struct switch template True try typedef typename union unsigned using void volatile while with "
    + "__global__ __device__ __shared__ __constant__ __host__ __restrict__ __launch_bounds__ __forceinline__ asm").split(" "));
  const TOKEN = /(\/\*[^]*?(?:\*\/|(?![^]))|\/\/[^\n]*|"""[^]*?(?:"""|(?![^])))|("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|(^[ \t]*#[ \t]*(?:include|define|if|ifdef|ifndef|else|elif|endif|pragma|undef|error)\b[^\n]*)|(#[^\n]*)|(\b\d[\w.]*)|([A-Za-z_]\w*)/gm;
  const KINDS = ["note", "text", "hash", "note", "digit", "word"];
  function coloured(text) {
    const made = document.createDocumentFragment();
    let at = 0;
    for (const m of text.matchAll(TOKEN)) {
      const kind = KINDS[m.slice(1).findIndex(function (g) { return g !== undefined; })];
      if (kind === "word" && !WORDS.has(m[0])) { continue; }
      made.append(text.slice(at, m.index));
      m[0].split("\n").forEach(function (part, i) {
        if (i) { made.append("\n"); }
        const span = document.createElement("span");
        span.className = kind;
        span.textContent = part;
        made.append(span);
      });
      at = m.index + m[0].length;
    }
    made.append(text.slice(at));
    return made;
  }
  function linesOf(text) {
    const lines = [[]];
    Array.from(coloured(text).childNodes).forEach(function (node) {
      if (node.nodeType !== Node.TEXT_NODE) { lines[lines.length - 1].push(node); return; }
      node.textContent.split("\n").forEach(function (part, i) {
        if (i) { lines.push([]); }
        lines[lines.length - 1].push(part);
      });
    });
    return lines;
  }
  function fill(block, lines) {
    let number = Number(block.dataset.from);
    block.textContent = "";
    lines.forEach(function (line, i) {
      const label = document.createElement("b");
      label.textContent = String(number++);
      block.append(label);
      line.forEach(function (part) { block.append(part); });
      if (i + 1 < lines.length) { block.append("\n"); }
    });
  }
  // The file is coloured whole: a comment may begin in one stretch and end in another. What was removed is no part of it.
  function numbered(blocks) {
    const kept = blocks.filter(function (block) { return !block.classList.contains("removed"); });
    const textOf = function (block) { return block.textContent.replace(/\n$/, ""); };
    const counts = kept.map(function (block) { return textOf(block).split("\n").length; });
    const lines = linesOf(kept.map(textOf).join("\n"));
    blocks.filter(function (block) { return !kept.includes(block); }).forEach(function (block) { fill(block, linesOf(textOf(block))); });
    kept.forEach(function (block, i) { fill(block, lines.splice(0, counts[i])); });
  }
  document.querySelectorAll("details").forEach(function (details) {
    details.addEventListener("toggle", function () {
      details.querySelectorAll("pre[data-lines]").forEach(function (pre) {
        pre.removeAttribute("data-lines");
        numbered(Array.from(pre.querySelectorAll("[data-from]")));
      });
    }, { once: true });
  });
})();
