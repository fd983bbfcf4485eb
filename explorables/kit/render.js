// The face that anywidget and other module hosts ask for: `render({ model, el })`.

/**
 * `model` is anything with get(name), and optionally set, save_changes, on, off; its values set the
 * figure's state, and the reader's changes go back to it. Returns the clean-up function.
 */
export const renderer =
  (tag) =>
  ({ model, el }) => {
    const figure = document.createElement(tag);
    const names = Object.keys(figure.constructor.schema);
    const fromModel = () =>
      Object.fromEntries(
        names.map((name) => [name, model.get(name)]).filter(([, value]) => value !== undefined),
      );
    for (const [name, value] of Object.entries(fromModel())) {
      figure.setAttribute(name, Array.isArray(value) ? value.join("+") : value);
    }
    el.append(figure);
    let sending = false;
    const heard = () => {
      if (!sending) figure.update(fromModel());
    };
    const tell = ({ detail }) => {
      if (!model.set) return;
      sending = true;
      for (const [name, value] of Object.entries(detail)) {
        if (model.get(name) !== undefined) model.set(name, value);
      }
      model.save_changes?.();
      sending = false;
    };
    figure.addEventListener("kl-state", tell);
    for (const name of names) model.on?.(`change:${name}`, heard);
    return () => {
      for (const name of names) model.off?.(`change:${name}`, heard);
      figure.remove();
    };
  };
