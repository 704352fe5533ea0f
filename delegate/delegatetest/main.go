package delegatetest

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// Main must come first in the TestMain of a test that gives [Conform] a
// [Binary]:
//
//	func TestMain(m *testing.M) {
//		delegatetest.Main()
//		os.Exit(m.Run())
//	}
//
// In a process that a plugin has started as its delegate it plays that, and
// does not return. In every other it does nothing. It is the one function of
// this package that touches the process.
func Main() {
	socket, ok := delegateSocket()
	if !ok {
		return
	}
	_, _ = io.WriteString(os.Stderr, said(os.Getenv("CNI_COMMAND"), filepath.Base(os.Args[0]))) // which a plugin may have closed
	r, err := ask(socket)
	if err != nil {
		fmt.Fprintln(os.Stderr, "delegatetest:", err)
		exit(3)
	}
	if r.Die {
		if self, err := os.FindProcess(os.Getpid()); err == nil {
			_ = self.Kill()
		}
		exit(3) // where there is no such end
	}
	_, err = os.Stdout.Write(r.Stdout)
	if r.Error != nil {
		_ = json.NewEncoder(os.Stdout).Encode(r.Error) // the status says it all
	}
	if r.Error != nil || err != nil {
		exit(1)
	}
	exit(0)
}

// exit ends the process at once. [os.Exit] takes a second if the test has been
// built with the race detector and the plugin has not handed on [raceEnv].
func exit(status int) { syscall.Exit(status) }

// delegateSocket is where a process that is a delegate finds the test.
func delegateSocket() (path string, ok bool) {
	name := os.Args[0]
	if !filepath.IsAbs(name) {
		return "", false
	}
	link := filepath.Join(filepath.Dir(name), socketName)
	if _, err := os.Lstat(link); err != nil {
		return "", false
	}
	// What it leads to may be gone with the test. The delegate then fails.
	if path, _ = os.Readlink(link); path == "" {
		path = link
	}
	return path, true
}

func ask(socket string) (r reply, err error) {
	stdin, err := io.ReadAll(os.Stdin)
	if err != nil {
		return r, err
	}
	conn, err := net.Dial("unix", socket) //nolint:noctx // the process ends with it
	if err != nil {
		return r, err
	}
	defer func() { _ = conn.Close() }()
	if err := json.NewEncoder(conn).Encode(request{filepath.Base(os.Args[0]), os.Environ(), stdin}); err != nil {
		return r, err
	}
	err = json.NewDecoder(conn).Decode(&r)
	return r, err
}
