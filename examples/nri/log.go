package main

import (
	"io"
	"log/syslog"
	"os"
)

// priority is the priority of all lines in the system's log. Their level is in the text.
const priority = syslog.LOG_DAEMON | syslog.LOG_INFO

// systemLog connects to the system's log, such as journald.
func systemLog() (io.Writer, error) { return syslog.New(priority, "nri") }

// destination returns the writer to log to: stderr or, if stderr is /dev/null as in a
// plugin that the runtime has launched, the system's log, if there is one.
func destination(stderr *os.File, system func() (io.Writer, error)) io.Writer {
	to, err := stderr.Stat()
	null, nullErr := os.Stat(os.DevNull)
	if err != nil || nullErr != nil || !os.SameFile(to, null) {
		return stderr
	}
	if w, err := system(); err == nil {
		return w
	}
	return stderr
}
