package main

import (
	"io"
	"log/syslog"
	"os"
	"slices"
	"strings"
)

// defaultPath is where CNI plugins find the programs they need, such as
// iptables, when nri itself has no PATH.
const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment returns env, with a PATH. A runtime launches plugins without.
func environment(env []string) []string {
	has := func(e string) bool { return strings.HasPrefix(e, "PATH=") && e != "PATH=" }
	if slices.ContainsFunc(env, has) {
		return env
	}
	return append(slices.Clone(env), defaultPath)
}

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
