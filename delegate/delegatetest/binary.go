package delegatetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// A Binary is an executable file for [Conform]. Its delegates are processes too:
// copies of the program that calls Conform, which play the delegate and exit before
// main or TestMain begins.
type Binary struct {
	Path string // of the executable

	// Env is the environment of the executable, as "key=value". Conform adds the
	// CNI variables, and GORACE unless Env has it: a program that is built with
	// the race detector otherwise takes a second to exit.
	Env []string
}

const (
	// socketName is the name of a link to the socket. It is in the directory of
	// the delegates' executables.
	socketName = "delegatetest.sock"

	// raceEnv makes programs that are built with the race detector exit at once.
	raceEnv = "GORACE=atexit_sleep_ms=0"

	// leftBehind is how long descendants of a plugin that has ended may keep its
	// stdout or stderr open.
	leftBehind = time.Second

	// maxSocket is the length that the path of a socket may have on any system.
	maxSocket = 100
)

// A request tells the test how a delegate was called.
type request struct {
	Plugin  string
	Environ []string
	Stdin   []byte
}

// A reply tells the delegate what to do.
type reply struct {
	Stdout []byte
	Error  *types.Error // to be printed
	Die    bool         // instead of printing
}

func (p Binary) serve(ctx context.Context, x *Exec, dir string) (host, error) {
	self, err := os.Executable()
	if err != nil {
		return host{}, err
	}
	bin := filepath.Join(dir, ".delegates") // unlikely to be used by Config.Stdin
	if err := os.Mkdir(bin, 0o700); err != nil {
		return host{}, err
	}
	for typ := range x.Plugins {
		if err := os.Symlink(self, filepath.Join(bin, typ)); err != nil {
			return host{}, err
		}
	}
	l, remove, err := listen(ctx, bin)
	if err != nil {
		return host{}, fmt.Errorf("the socket of the delegates: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			wg.Go(func() { answerTo(ctx, x, conn) })
		}
	})
	return host{
		path: bin,
		real: true,
		run:  p.run,
		stop: func() {
			cancel()
			_ = l.Close()
			wg.Wait()
			remove()
		},
	}, nil
}

// listen creates the socket, and a link to it in bin. Where the path would be too
// long for a socket, it creates the socket in another directory.
func listen(ctx context.Context, bin string) (l net.Listener, remove func(), err error) {
	dir := bin
	remove = func() {}
	if len(dir)+len("/socket") > maxSocket {
		if dir, err = os.MkdirTemp("/tmp", "conform"); err != nil {
			return nil, nil, fmt.Errorf("the path %s is too long for a socket: %w", bin, err)
		}
		remove = func() { _ = os.RemoveAll(dir) } // it is temporary
	}
	socket := filepath.Join(dir, "socket")
	if l, err = new(net.ListenConfig).Listen(ctx, "unix", socket); err == nil {
		err = os.Symlink(socket, filepath.Join(bin, socketName))
	}
	if err != nil {
		remove()
		return nil, nil, err
	}
	return l, remove, nil
}

func (p Binary) run(ctx context.Context, c Call) Outcome {
	return execute(ctx, exec.CommandContext(ctx, p.Path), p.Env, c)
}

// execute runs cmd as runtimes run a plugin, with env before the environment of c.
func execute(ctx context.Context, cmd *exec.Cmd, env []string, c Call) Outcome {
	var stdout, stderr bytes.Buffer
	cmd.WaitDelay = leftBehind
	c.Env = slices.Concat([]string{raceEnv}, env, c.Env)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.environ(), bytes.NewReader(c.Stdin), &stdout, &stderr
	err := cmd.Run()
	o := Outcome{Status: -1, Stdout: stdout.Bytes(), Stderr: stderr.Bytes()}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		o.Stderr = fmt.Append(o.Stderr, "it did not end in time and was killed")
	case errors.Is(err, exec.ErrWaitDelay):
		o.Stderr = fmt.Append(o.Stderr, "it ended, and left a process behind that keeps its stdout or stderr open: a runtime waits for that")
	case cmd.ProcessState != nil && cmd.ProcessState.ExitCode() >= 0:
		o.Status = cmd.ProcessState.ExitCode()
	default:
		o.Stderr = fmt.Append(o.Stderr, err)
	}
	return o
}

// answerTo serves the process of a delegate. The context of the fake ends with the
// process.
func answerTo(ctx context.Context, x *Exec, conn net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer func() { _ = conn.Close() }()
	var q request
	if err := json.NewDecoder(conn).Decode(&q); err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(io.Discard, conn) // until the process ends
		cancel()
	}()
	_ = json.NewEncoder(conn).Encode(perform(ctx, x, q)) // on an error the process has ended
}

// said returns the line that a delegate writes to stderr.
func said(command, plugin string) string { return "delegatetest: " + command + " of " + plugin + "\n" }

func perform(ctx context.Context, x *Exec, q request) (r reply) {
	out, err := x.ExecPlugin(ctx, q.Plugin, q.Stdin, q.Environ)
	r.Stdout = out
	if err != nil && !errors.As(err, &r.Error) {
		r.Die = true
	}
	return r
}
