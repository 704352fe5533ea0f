package main

import (
	"io"
	"log/syslog"
	"os"
)

// priority is that of lines in the system's log; their own level is in them.
const priority = syslog.LOG_DAEMON | syslog.LOG_INFO

// systemLog connects to the system's log: journald or another.
func systemLog() (io.Writer, error) { return syslog.New(priority, "nri") }

// destination returns where to log to: stderr, or the system's log where stderr
// leads nowhere, as that of a plugin that the runtime has launched, and if there
// is one.
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
