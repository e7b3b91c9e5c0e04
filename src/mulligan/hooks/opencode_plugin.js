// Written by `mulligan install opencode`; `mulligan uninstall opencode` removes it.
// It hands failed tool calls and compactions to mulligan, and shows the model what mulligan answers.
import { spawnSync } from "node:child_process"
import { homedir } from "node:os"
import { join } from "node:path"

const COMMAND = []
const TIMEOUT_MS = 10000
const DATA = process.env.XDG_DATA_HOME || join(homedir(), ".local", "share")

function send(event) {
  try {
    const options = { input: JSON.stringify(event), encoding: "utf8", timeout: TIMEOUT_MS, windowsHide: true }
    const answer = spawnSync(COMMAND[0], COMMAND.slice(1), options).stdout
    return (answer && JSON.parse(answer).hookSpecificOutput?.additionalContext) || ""
  } catch {
    return "" // the agent continues without mulligan
  }
}

function hasFailed(part) {
  const state = part.state ?? {}
  const exit = state.metadata?.exit
  return state.status === "error" || (state.status === "completed" && (part.tool === "invalid" || (exit !== undefined && exit !== 0)))
}

export const Mulligan = async ({ directory }) => {
  const sessions = new Map()
  const reported = new Set()
  const build = (name, session, fields) => ({
    hook_event_name: name,
    session_id: session,
    cwd: directory,
    transcript_path: join(DATA, "opencode", "opencode.db"),
    ...fields,
  })
  return {
    event: async ({ event }) => {
      const { part, sessionID } = event.properties ?? {}
      if (event.type === "message.part.updated" && part?.type === "tool" && hasFailed(part)) {
        if (reported.has(part.callID)) return
        reported.add(part.callID)
        const entry = sessions.get(part.sessionID) ?? { reminder: "", notes: [] }
        sessions.set(part.sessionID, entry)
        const note = send(build("ToolFailed", part.sessionID, { part }))
        if (note) entry.notes.push(note)
      } else if (event.type === "session.compacted" && sessions.has(sessionID)) {
        sessions.get(sessionID).reminder = send(build("SessionCompacted", sessionID, { source: "compact" }))
      } else if (event.type === "session.idle" && sessions.has(sessionID)) {
        send(build("SessionIdle", sessionID, {}))
      }
    },
    "experimental.chat.system.transform": async ({ sessionID }, output) => {
      const entry = sessions.get(sessionID)
      if (!entry) return
      if (entry.reminder) output.system.push(entry.reminder)
      output.system.push(...entry.notes.splice(0))
    },
  }
}
