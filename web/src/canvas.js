// SPDX-License-Identifier: Apache-2.0
// A canvas of our own below or above Cytoscape's, on which the picture moves as Cytoscape's does.

/**
 * @param {object} picture Cytoscape's.
 * @param {HTMLElement} container Where it draws.
 * @param {boolean} isAbove Whether it covers what Cytoscape draws.
 */
export function makeCanvas(picture, container, isAbove) {
  const canvas = document.createElement("canvas");
  canvas.className = isAbove ? "boxes" : "lines";
  canvas.setAttribute("aria-hidden", "true");
  if (isAbove) container.append(canvas);
  else container.prepend(canvas);
  const context = canvas.getContext("2d");
  /** Empties it, and returns which part of the picture is seen, and how large. */
  const begin = () => {
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [container.clientWidth, container.clientHeight];
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    const zoom = picture.zoom();
    const { x, y } = picture.pan();
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.setTransform(zoom * ratio, 0, 0, zoom * ratio, x * ratio, y * ratio);
    const [left, top, right, bottom] = [-x / zoom, -y / zoom, (width - x) / zoom, (height - y) / zoom];
    const isSeen = (at) => at.x + at.w >= left && at.x - at.w <= right && at.y + at.h >= top && at.y - at.h <= bottom;
    return { zoom, isSeen };
  };
  return { context, begin, remove: () => canvas.remove() };
}
