// Written by `mulligan install pi`; `mulligan uninstall pi` removes it.
// It hands failed tool calls and compactions to mulligan, and shows the model what mulligan answers.
import { spawnSync } from "node:child_process"

const COMMAND = []
const TIMEOUT_MS = 10000

function send(name, context, fields) {
  try {
    const event = {
      hook_event_name: name,
      session_id: context.sessionManager.getSessionId(),
      cwd: context.cwd,
      transcript_path: context.sessionManager.getSessionFile() ?? "",
      model: context.model?.id ?? "",
      ...fields,
    }
    const options = { input: JSON.stringify(event), encoding: "utf8", timeout: TIMEOUT_MS, windowsHide: true }
    const answer = spawnSync(COMMAND[0], COMMAND.slice(1), options).stdout
    return (answer && JSON.parse(answer).hookSpecificOutput?.additionalContext) || ""
  } catch {
    return "" // the agent continues without mulligan
  }
}

function joinText(content) {
  return content.filter((part) => part.type === "text").map((part) => part.text).join("\n")
}

function withText(message, text) {
  return { ...message, content: [...message.content, { type: "text", text }] }
}

export default function mulligan(pi) {
  let reminder = ""
  let hasFailures = false
  const calls = new Map() // arguments of the calls of this batch
  const notes = new Map() // what mulligan said about a failed call
  // A session that is resumed has its failures and the reminder after its last compaction in its log.
  pi.on("session_start", (_event, context) => {
    const entries = context.sessionManager.getEntries()
    const stored = entries.findLast((entry) => entry.type === "custom" && entry.customType === "mulligan")
    reminder = stored?.data?.reminder ?? ""
    hasFailures = entries.some(({ message }) => message?.role === "toolResult" && message.isError)
    notes.clear()
  })
  pi.on("tool_execution_start", ({ toolCallId, args }) => {
    calls.set(toolCallId, args)
  })
  pi.on("message_end", ({ message }, context) => {
    if (message.role !== "toolResult") return
    const id = message.toolCallId
    const tool_input = calls.get(id)
    calls.delete(id)
    if (!message.isError) return
    hasFailures = true
    const fields = { tool_name: message.toolName, tool_use_id: id, tool_input, error: joinText(message.content) }
    const note = send("ToolFailed", context, fields)
    if (note) notes.set(id, note)
  })
  pi.on("session_compact", (_event, context) => {
    reminder = hasFailures ? send("SessionCompacted", context, { source: "compact" }) : ""
    if (hasFailures) pi.appendEntry("mulligan", { reminder })
  })
  pi.on("agent_end", (_event, context) => {
    if (hasFailures) send("SessionIdle", context, {})
  })
  // The text is added to each request and not to the session's log, where it would be read as a tool's own words.
  pi.on("context", ({ messages }) => {
    if (!reminder && !notes.size) return
    return {
      messages: messages.map((message) => {
        if (message.role === "toolResult" && notes.has(message.toolCallId)) {
          return withText(message, notes.get(message.toolCallId))
        }
        if (message.role === "compactionSummary" && reminder) {
          return { ...message, summary: `${message.summary}\n\n${reminder}` }
        }
        return message
      }),
    }
  })
}
