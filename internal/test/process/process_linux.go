package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
)

// A Process is killed when this process ends, however it ends.
type Process struct {
	Cmd  *exec.Cmd
	Done chan struct{} // is closed when the process has ended

	log string
}

// Start starts a command, whose output goes to the end of the file log. Each of confine
// first changes the thread from which the process inherits its rights, and which ends with
// the process.
func Start(log string, cmd *exec.Cmd, confine ...func() error) (*Process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	p := &Process{Cmd: cmd, log: log, Done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = file, file
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the signal comes at the end of this thread
		defer close(p.Done)
		var err error
		for _, change := range confine {
			err = errors.Join(err, change())
		}
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	return p, <-started
}

// Kill ends the process and waits for its end. A nil process has ended.
func (p *Process) Kill() {
	if p != nil && p.Cmd.Process != nil {
		_ = p.Cmd.Process.Kill()
		<-p.Done
	}
}

// Signal sends a signal to the process.
func (p *Process) Signal(sig os.Signal) error { return p.Cmd.Process.Signal(sig) }

// LastLines returns the end of what the process has printed.
func (p *Process) LastLines() string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := bytes.SplitAfter(data, []byte("\n"))
	return fmt.Sprintf("%s:\n%s", filepath.Base(p.log), bytes.Join(lines[max(0, len(lines)-20):], nil))
}
