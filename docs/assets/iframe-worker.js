// Search in pages that are opened from the disk, where browsers refuse to start a worker: its script runs in a frame.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<body><script>
        window.postMessage = data => frameElement.dispatchEvent(new CustomEvent("answer", { detail: data }));
        window.importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise(loaded => {
          const script = document.createElement("script");
          [script.src, script.onload] = [url, loaded];
          document.body.append(script);
        })), Promise.resolve());
      <\/script><script src="${url}"><\/script></body>`;
      frame.addEventListener("answer", event => {
        this.dispatchEvent(new MessageEvent("message", { data: event.detail }));
      });
      this.ready = new Promise(loaded => frame.addEventListener("load", loaded, { once: true }));
      this.frame = frame;
      document.body.append(frame);
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
