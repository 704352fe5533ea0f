package conform

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// In a process that a plugin under test has started as its delegate, init plays the
// delegate and exits. It asks the test, in which the fake runs, and so needs nothing
// that is initialized later. In any other process init does nothing.
func init() { //nolint:gochecknoinits // a delegate must not run the tests
	socket, ok := delegateSocket()
	if !ok {
		return
	}
	_, _ = io.WriteString(os.Stderr, said(os.Getenv("CNI_COMMAND"), filepath.Base(os.Args[0]))) // an error means that the plugin has closed it
	r, err := ask(socket)
	if err != nil {
		fmt.Fprintln(os.Stderr, "conform:", err)
		exit(3)
	}
	if r.Die {
		if self, err := os.FindProcess(os.Getpid()); err == nil {
			_ = self.Kill()
		}
		exit(3) // on a system that cannot kill
	}
	_, err = os.Stdout.Write(r.Stdout)
	if r.Error != nil {
		_ = json.NewEncoder(os.Stdout).Encode(r.Error) // the status says that it failed
	}
	if r.Error != nil || err != nil {
		exit(1)
	}
	exit(0)
}

// exit ends the process at once. [os.Exit] takes a second if the test was built
// with the race detector and the plugin did not pass [raceEnv] on.
func exit(status int) { syscall.Exit(status) }

// delegateSocket returns the socket of the test if this process is a delegate.
func delegateSocket() (path string, ok bool) {
	name := os.Args[0]
	if !filepath.IsAbs(name) {
		return "", false
	}
	link := filepath.Join(filepath.Dir(name), socketName)
	if _, err := os.Lstat(link); err != nil {
		return "", false
	}
	// The socket may be gone with the test. The delegate then fails.
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
	if err := json.NewEncoder(conn).Encode(request{filepath.Base(os.Args[0]), os.Environ(), stdin, ancestors()}); err != nil {
		return r, err
	}
	err = json.NewDecoder(conn).Decode(&r)
	return r, err
}

// ancestors returns the IDs of the process's parent, of that one's parent, and so on, where
// proc(5) has them.
func ancestors() (all []int) {
	for pid := os.Getppid(); pid > 1 && len(all) < 64; {
		all = append(all, pid)
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			break
		}
		// The name, in parentheses, can contain anything; the state and the parent follow.
		var state string
		if _, err := fmt.Sscan(string(stat[bytes.LastIndexByte(stat, ')')+1:]), &state, &pid); err != nil {
			break
		}
	}
	return all
}
