// What every section is built with. Words from records only ever become text, never markup.

const SVG = "http://www.w3.org/2000/svg";

function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value);
    }
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

// Colours are variables of the style sheet, so that a change of theme needs no redrawing.
const NUM_COLOURS = 10;

function colour(index) {
  const base = `var(--c${index % NUM_COLOURS})`;
  const isRepeated = Math.floor(index / NUM_COLOURS) % 2 === 1;
  return isRepeated ? `color-mix(in srgb, ${base} 55%, var(--text))` : base;
}

function button(text, onClick, attributes = {}) {
  return make("button", { type: "button", click: onClick, ...attributes }, text);
}

// A button that stays pressed. `onChange` is told whether it is.
function toggle(children, isPressed, onChange, attributes = {}) {
  const shown = { type: "button", "aria-pressed": String(isPressed), ...attributes };
  const element = make("button", shown, ...children);
  element.addEventListener("click", () => {
    const now = element.getAttribute("aria-pressed") !== "true";
    element.setAttribute("aria-pressed", String(now));
    onChange(now);
  });
  return element;
}

// A labelled list to choose from; options are [value, text].
function chooser(label, options, chosen, onChange) {
  const select = make("select", { change: () => onChange(select.value) });
  for (const [value, text] of options) {
    select.append(make("option", { value, selected: String(value) === String(chosen) }, text));
  }
  return make("label", { class: "chooser" }, `${label} `, select);
}

// Buttons of which one is pressed; options are [value, text].
function choice(label, options, chosen, onChange) {
  const group = make("div", { class: "choice", role: "group", "aria-label": label });
  for (const [value, text] of options) {
    group.append(
      button(text, (event) => {
        for (const other of group.children) other.setAttribute("aria-pressed", "false");
        event.currentTarget.setAttribute("aria-pressed", "true");
        onChange(value);
      }, { "aria-pressed": String(value === chosen), "data-value": value }),
    );
  }
  return group;
}

// Fill a section, or hide it if there is nothing to show.
function fill(id, ...children) {
  const section = document.getElementById(id);
  section.hidden = children.length === 0;
  section.querySelector(".host").replaceChildren(...children);
}
