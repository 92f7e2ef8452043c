// SPDX-License-Identifier: Apache-2.0
// A colour for each target, for light pages and for dark ones; text is readable on all of them.

const LIGHT = ["#bcd9ff", "#ffd9a8", "#bfe6bf", "#f5c6e6", "#dccff7", "#ffec99", "#b8e6e8", "#e3d5c5"];
const DARK = ["#1f4f8f", "#7d4a0e", "#27632f", "#80316a", "#513d92", "#665600", "#12636a", "#5d4b39"];

const dark = window.matchMedia("(prefers-color-scheme: dark)");

export function colourOf(index) {
  const colours = dark.matches ? DARK : LIGHT;
  return colours[index % colours.length];
}

export function scheme() {
  return dark.matches
    ? { ink: "#f2f5f8", soft: "#93a0ac", paper: "#14181c", mark: "#ffa79e", accent: "#8ec1ff" }
    : { ink: "#15191d", soft: "#66727d", paper: "#ffffff", mark: "#b3261e", accent: "#0b57a4" };
}

export function onSchemeChange(callback) {
  dark.addEventListener("change", callback);
}
