"use strict";
(() => {
  const pairs = JSON.parse(document.getElementById("pairs").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const FRAMES = 3; // the strongest regions get a frame and a name
  let masks = 0;

  const make = (name, attributes, parent, text) => {
    const element = document.createElementNS(parent instanceof SVGElement || name === "svg" ? SVG : "http://www.w3.org/1999/xhtml", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.append(element);
    return element;
  };
  const isWord = (word) => !word.startsWith("<");
  const strongest = (weights) => Math.max(1, ...weights);

  // The photograph, dark where nothing looks; weights light the regions.
  const light = (svg, pair, weights, name, onRegion) => {
    svg.replaceChildren();
    const height = 1000 * pair.height / pair.width;
    svg.setAttribute("viewBox", `0 0 1000 ${height}`);
    const place = ([left, top, right, bottom]) => ({ x: 1000 * left, y: height * top, width: 1000 * (right - left), height: height * (bottom - top) });
    const order = pair.boxes.map((_, region) => region);
    if (weights) {
      const id = `lit-${masks++}`;
      const most = strongest(weights);
      const mask = make("mask", { id }, make("defs", {}, svg));
      make("rect", { width: 1000, height, fill: "#fff" }, mask);
      order.sort((a, b) => weights[a] - weights[b]);
      for (const region of order) make("rect", { ...place(pair.boxes[region]), fill: "#000", "fill-opacity": weights[region] / most }, mask);
      make("rect", { width: 1000, height, fill: "#000", "fill-opacity": 0.72, mask: `url(#${id})` }, svg);
    }
    const framed = weights ? new Set(order.slice(-FRAMES)) : new Set();
    const area = ([left, top, right, bottom]) => (right - left) * (bottom - top);
    // Small regions come last, on top, so that each can be chosen.
    for (const region of [...order].sort((a, b) => area(pair.boxes[b]) - area(pair.boxes[a]))) {
      const box = place(pair.boxes[region]);
      const frame = make("rect", { ...box, class: framed.has(region) ? "frame" : "frame faint", "stroke-width": region === order[order.length - 1] ? 3.5 : 2 }, svg);
      make("title", {}, frame, pair.labels ? pair.labels[region] : `region ${region + 1}`);
      frame.addEventListener("click", () => onRegion(region));
    }
    if (weights && pair.labels) {
      const best = order[order.length - 1];
      const box = place(pair.boxes[best]);
      const x = Math.min(Math.max(box.x, 0), 1000 - 20 * pair.labels[best].length), y = Math.max(box.y, 40);
      const text = make("text", { x: x + 8, y: y - 9 }, svg, pair.labels[best]);
      const around = text.getBBox();
      svg.insertBefore(make("rect", { class: "tag", x, y: y - 40, width: around.width + 16, height: 40 }, svg), text);
    }
    svg.setAttribute("aria-label", name);
  };

  const explain = (container, name) => {
    const pair = pairs[name];
    container.replaceChildren();
    const photo = make("div", { class: "photo" }, container);
    const source = document.querySelector(`img[data-image="${pair.image}"]`);
    make("img", { src: source.src, alt: pair.key }, photo);
    const svg = make("svg", { role: "img" }, photo);
    const verdict = make("p", { class: "verdict" }, container);
    make("span", { class: `mark ${pair.right ? "right" : "wrong"}` }, verdict, pair.right ? "✓ matching pair " : "✗ not matching ");
    verdict.append(" score ");
    make("b", {}, verdict, String(pair.score));
    const line = make("div", { class: "words", role: "group", "aria-label": pair.text }, container);
    const hint = make("p", { class: "hint", "aria-live": "polite" }, container);
    const share = pair.wordGate || pair.wordWeight;
    const most = pair.wordGate ? 1000 : strongest(share || [1]);
    const chips = [];
    const press = (chosen) => chips.forEach(([word, chip]) => chip.setAttribute("aria-pressed", String(word === chosen)));
    const underline = (values, top) => chips.forEach(([word, chip]) => chip.style.setProperty("--share", `${100 * (values ? values[word] : 0) / top}%`));

    const whole = () => {
      press(-1);
      underline(share, most);
      const what = pair.regionWeight ? "share of each region in the image" : pair.regionGate ? "gate of each region" : "the image";
      light(svg, pair, pair.regionWeight || pair.regionGate, what, region);
      hint.textContent = `Light: ${what}.` + (pair.wordGate ? " Bars: gate of each word." : pair.wordWeight ? " Bars: share of each word." : "");
    };
    const word = (number) => {
      if (!pair.regionAttention) return whole();
      press(number);
      light(svg, pair, pair.regionAttention[number], `what “${pair.words[number]}” looks at`, region);
      hint.textContent = `What “${pair.words[number]}” looks at.` + (pair.wordGate ? ` Its gate: ${(pair.wordGate[number] / 1000).toFixed(3)}.` : "");
    };
    const region = (number) => {
      const weights = pair.boxes.map((_, other) => (other === number ? 1 : 0));
      press(-1);
      light(svg, pair, weights, `region ${number + 1}`, region);
      const name = pair.labels ? pair.labels[number] : `Region ${number + 1}`;
      const parts = [name];
      if (pair.regionGate) parts.push(`gate ${(pair.regionGate[number] / 1000).toFixed(3)}`);
      if (pair.regionWeight) parts.push(`share ${(pair.regionWeight[number] / 10).toFixed(1)}%`);
      if (pair.wordAttention) {
        underline(pair.wordAttention[number], strongest(pair.wordAttention[number]));
        parts.push("bars: the words it reads");
      }
      hint.textContent = parts.join(" · ");
    };
    pair.words.forEach((text, number) => {
      if (!isWord(text)) return;
      const chip = make("button", { class: "word", type: "button", "aria-pressed": "false" }, line, text);
      make("i", { "aria-hidden": "true" }, chip);
      chip.addEventListener("click", () => (chip.getAttribute("aria-pressed") === "true" ? whole() : word(number)));
      chips.push([number, chip]);
    });
    whole();
  };

  document.querySelectorAll("[data-explain]").forEach((panel) => explain(panel, panel.dataset.explain));
  const dialog = document.getElementById("explanation");
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-pair]");
    if (button) {
      dialog.querySelector("h3").textContent = `“${pairs[button.dataset.pair].text}”`;
      dialog.showModal();
      explain(dialog.querySelector(".explanation"), button.dataset.pair);
    } else if (event.target === dialog) {
      dialog.close();
    }
  });
})();
