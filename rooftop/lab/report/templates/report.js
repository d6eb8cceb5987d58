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
  window.rooftop = { coloured: coloured };
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
    const textOf = function (block) { return block.textContent.replace(/\n$/, "").replace(/^\t+/gm, function (tabs) { return "    ".repeat(tabs.length); }); };
    const counts = kept.map(function (block) { return textOf(block).split("\n").length; });
    const lines = linesOf(kept.map(textOf).join("\n"));
    blocks.filter(function (block) { return !kept.includes(block); }).forEach(function (block) { fill(block, linesOf(textOf(block))); });
    kept.forEach(function (block, i) { fill(block, lines.splice(0, counts[i])); });
  }
  function look(pre) {
    pre.removeAttribute("data-lines");
    numbered(Array.from(pre.querySelectorAll("[data-from]")));
  }
  const near = new IntersectionObserver(function (seen) {
    seen.filter(function (one) { return one.isIntersecting; }).forEach(function (one) {
      near.unobserve(one.target);
      look(one.target);
    });
  }, { rootMargin: "800px" });
  document.querySelectorAll("pre[data-lines]").forEach(function (pre) {
    if (pre.clientHeight && pre.getBoundingClientRect().top < innerHeight + 800) { look(pre); } else { near.observe(pre); }
  });

  const SAID = { zh: { "your number": "你的数字", "that is no number": "这不是数字", " points of 100": " 分（满分 100）", right: "正确", no: "不对", "nothing found": "没有找到", "tap to enlarge": "点按放大",
    "search the pages": "搜索页面", search: "搜索" } };
  function words(text) { return (SAID[document.documentElement.lang] || {})[text] || text; }

  // On a narrow screen a drawing is made to fit; a tap shows it at its own size, and the next one does not.
  document.querySelectorAll("figure.drawing").forEach(function (figure) {
    const picture = figure.querySelector("svg");
    figure.classList.toggle("shrunk", picture.width.baseVal.value > picture.clientWidth + 1);
    figure.dataset.hint = words("tap to enlarge");
    figure.addEventListener("click", function () { figure.classList.toggle("large"); });
  });

  // The course: a choice is marked when it is taken, and a number is asked for before the answer unfolds.
  document.querySelectorAll(".ask").forEach(function (ask) {
    const answer = ask.querySelector("details");
    const items = Array.from(ask.querySelectorAll(":scope > ol > li"));
    items.forEach(function (item, i) {
      function take() {
        item.className = i === Number(ask.dataset.right) ? "good" : "bad";
        answer.open = answer.open || item.className === "good" || !ask.classList.contains("puzzle");
        const said = answer.querySelectorAll("li")[i];
        if (said && !answer.open && !item.querySelector("small")) {
          const words = document.createElement("small");
          words.textContent = " " + said.textContent;
          item.append(words);
        }
      }
      item.tabIndex = 0;
      item.setAttribute("role", "button");
      item.addEventListener("click", take);
      item.addEventListener("keydown", function (event) { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); take(); } });
    });
    if (items.length) { return; }
    const found = Number(ask.dataset.found || ask.dataset.number);
    const input = document.createElement("input");
    const said = document.createElement("span");
    input.inputMode = "decimal";
    input.placeholder = words("your number");
    input.setAttribute("aria-label", words("your number"));
    said.setAttribute("role", "status");
    input.addEventListener("change", function () {
      const text = input.value.trim().replace(/,(?=\d{3}\b)/g, "").replace(",", ".");
      const given = Number(text);
      if (!text || !isFinite(given)) { said.textContent = text ? words("that is no number") : ""; return; }
      const within = Number(ask.dataset.within || 0.15);
      const near = Math.abs(given - found) <= within * Math.abs(found) + 1e-9;
      const points = given > 0 && found > 0 ? Math.round(100 * Math.max(0, 1 - Math.abs(Math.log(given / found)) / Math.log(4))) : near ? 100 : 0;
      said.textContent = ask.dataset.found ? points + words(" points of 100") : words(near ? "right" : "no");
      answer.open = true;
    });
    answer.before(input, said);
  });

  // Search: the list of what there is comes when a reader first looks for something.
  document.querySelectorAll("nav[data-search]").forEach(function (nav) {
    const box = document.createElement("div");
    const input = document.createElement("input");
    const list = document.createElement("ol");
    const MOST = 12;
    let at = -1;
    box.className = "search";
    box.setAttribute("role", "search");
    input.type = "search";
    input.autocomplete = "off";
    input.placeholder = words("search");
    input.setAttribute("aria-label", words("search the pages"));
    list.hidden = true;
    box.append(input, list);
    nav.append(box);
    function plain(text) {
      return (" " + text.toLowerCase()).replace(/\brooftop\./g, "").replace(/[^\p{L}\p{N}]+/gu, " ").replace(/ bwd\b/g, " backward").trimEnd();
    }
    function stem(word) {  // sampling and sample, quantization and quantise, sparsity and sparse
      const cut = word.replace(/(?:i[sz]ation|i[sz]ing|i[sz]ed|i[sz]e|ation|ion|ing|ity|ed|er|es|e|s)$/, "");
      return cut.length > 2 && !word.endsWith("ss") ? cut : word;
    }
    function grade(part, text) {  // a whole word, one that begins so, or another form of it; a single letter is a word of its own
      return text.includes(" " + part + " ") ? 3 : part.length === 1 ? 0 : text.includes(" " + part) ? 2 : text.includes(" " + stem(part)) ? 1.5 : 0;
    }
    const PAGE = { op: 8, kernel: -4 };  // an op's own page before what only names it; a kernel is on such a page
    function rank(row, parts) {
      const joined = parts.join("");
      const name = plain(row[0] === "API" ? row[1].slice(row[1].lastIndexOf(".") + 1) : row[1]) + " ";
      const line = plain(row[0] + " " + row[1] + " " + row[2]) + " ", rest = plain(" " + row[4]) + " ";
      const letters = name.replace(/ /g, ""), own = name.trim().split(" ");
      const share = own.filter(function (word) { return parts.some(function (part) { return word.startsWith(part); }); }).length / own.length;
      let hits = 0, sum = letters === joined ? 100 : 0;  // layernorm is layer_norm
      parts.forEach(function (part) {
        const inside = part.length > 1 && name.includes(part) ? 1 : 0;
        const early = plain(row[2]).startsWith(" " + part) ? 2 : 0;
        const best = Math.max(8 * Math.max(grade(part, name), inside) * (1 + share) / 2, 5 * grade(part, line) + early, grade(part, rest));
        hits += best > 0 ? 1 : 0;
        sum += best;
      });
      if (letters.includes(joined)) { hits = parts.length; sum += 1; }
      return { row: row, hits: hits, sum: sum + (PAGE[row[0]] || 0) };
    }
    function found(parts) {  // the pages with all words, or if there are none those with most, half of them at least
      const rows = (window.rooftopPages || []).map(function (row) { return rank(row, parts); });
      const most = Math.max.apply(null, rows.map(function (one) { return one.hits; }));
      return rows.filter(function (one) { return one.hits === most && 2 * most >= parts.length && most > 0; })
        .sort(function (a, b) { return b.sum - a.sum || a.row[1].length - b.row[1].length; });
    }
    function show() {
      const parts = plain(input.value).split(" ").filter(Boolean);
      const rows = parts.length ? found(parts) : [];
      list.textContent = "";
      at = -1;
      rows.slice(0, MOST).forEach(function (one) {
        const item = document.createElement("li");
        const link = document.createElement("a");
        link.href = one.row[3];
        [["b", one.row[1]], ["i", one.row[0]], ["span", one.row[2]]].forEach(function (part) {
          const element = document.createElement(part[0]);
          element.textContent = part[1];
          link.append(element, " ");
        });
        item.append(link);
        list.append(item);
      });
      if (parts.length && window.rooftopPages && !rows.length) {
        const item = document.createElement("li");
        item.textContent = words("nothing found");
        list.append(item);
      }
      list.hidden = !list.childNodes.length;
    }
    function load() {
      if (document.getElementById("pages")) { return; }
      const script = document.createElement("script");
      script.id = "pages";
      script.src = "search.js";
      script.addEventListener("load", show);
      document.head.append(script);
    }
    input.addEventListener("focus", load);
    input.addEventListener("input", function () { load(); show(); });
    input.addEventListener("keydown", function (event) {
      const links = Array.from(list.querySelectorAll("a"));
      if (event.key === "Escape") { input.value = ""; show(); return; }
      if (event.key === "Enter" && links.length) { links[Math.max(at, 0)].click(); return; }
      if (event.key !== "ArrowDown" && event.key !== "ArrowUp" || !links.length) { return; }
      event.preventDefault();
      at = (at + (event.key === "ArrowDown" ? 1 : links.length - 1) + (at < 0 && event.key === "ArrowUp" ? 1 : 0)) % links.length;
      links.forEach(function (link, i) { link.classList.toggle("here", i === at); });
    });
    list.addEventListener("click", function () { list.hidden = true; });
    document.addEventListener("click", function (event) { if (!box.contains(event.target)) { list.hidden = true; } });
  });
})();
