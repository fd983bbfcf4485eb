// The book's bundle: the page's address belongs to its figures.

import { register } from "./register.js";

register({ ownsAddress: true });
