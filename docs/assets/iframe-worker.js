// Lets the search work where the site is opened as a file: browsers allow no worker there. This one runs the same script
// in a hidden frame. It has the parts of Worker that the search uses: postMessage and the event "message".
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.scope = frame.contentWindow
      this.scope.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.waiting = []
      const script = frame.contentDocument.createElement("script")
      script.src = url
      script.onload = () => {
        this.waiting.forEach(data => this.send(data))
        this.waiting = null
      }
      frame.contentDocument.body.append(script)
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.send(data)
    }

    send(data) {
      this.scope.dispatchEvent(new this.scope.MessageEvent("message", { data }))
    }
  }
}
