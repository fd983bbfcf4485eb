// The module for live notebooks and for hosts that call render({ model, el }), such as anywidget.
// The address there is the application's, so figures leave it alone.

import { renderer } from "./kit/render.js";
import { figures, register } from "./register.js";

register({ ownsAddress: false });

const renderers = Object.fromEntries(
  Object.keys(figures).map((tag) => [tag.replace(/^kl-/, ""), renderer(tag)]),
);

export default {
  /** Shows the figure that `model.get("figure")` names, two-gaussians if it names none. */
  render: ({ model, el }) => {
    const name = model.get("figure") ?? "two-gaussians";
    if (!Object.hasOwn(renderers, name)) throw new Error(`no figure is called ${name}`);
    return renderers[name]({ model, el });
  },
};
