// Runs before the first paint, so that a chosen theme does not flash. Everything else is in modules.
const chosen = localStorage.getItem("shoal-theme");
if (chosen) document.documentElement.dataset.theme = chosen;
