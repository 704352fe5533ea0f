package conform

import (
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
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
)

// A Binary is an executable file for [Test]. Its delegates are processes too:
// copies of the program that calls Test, which play the delegate and exit before
// main or TestMain begins.
type Binary struct {
	Path string // of the executable

	// Env is the environment of the executable, as "key=value". Test adds the
	// CNI variables, and GORACE unless Env has it: a program that is built with
	// the race detector otherwise takes a second to exit.
	Env []string

	// Daemon is the command of a daemon that the plugin needs. Test starts it on
	// each host that it makes, and stops it.
	Daemon []string
}

const (
	// socketName is the name of a link to the socket. It is in the directory of
	// the delegates' executables.
	socketName = "conform.sock"

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
	Parents []int // process IDs of its ancestors
}

// A reply tells the delegate what to do.
type reply struct {
	Stdout []byte
	Error  *types.Error // to be printed
	Die    bool         // instead of printing
}

func (p Binary) name() string { return filepath.Base(p.Path) }

// hide replaces the values of the environment, also those that are quoted or cut short.
func (p Binary) hide(text string) string {
	for _, kv := range p.Env {
		key, value, _ := strings.Cut(kv, "=")
		if len(value) < shortest {
			continue
		}
		quoted := strconv.Quote(value)
		for _, value := range []string{value, quoted[1 : len(quoted)-1]} {
			hidden := "[value of " + key + "]"
			text = strings.ReplaceAll(text, value, hidden)
			for n := len(value) - 1; n >= shortest; n-- {
				text = strings.ReplaceAll(text, value[:n]+"...", hidden+"...")
				text = strings.ReplaceAll(text, `stderr "`+value[len(value)-n:], `stderr "`+hidden)
			}
		}
	}
	return text
}

// shortest is the length of a value that can be a secret.
const shortest = 4

func (p Binary) serve(ctx context.Context, b *bench) (served, error) {
	x, dir := b.exec, b.dir
	self, err := os.Executable()
	if err != nil {
		return served{}, err
	}
	bin := filepath.Join(dir, ".delegates") // unlikely to be used by Config.Stdin
	if err := os.Mkdir(bin, 0o700); err != nil {
		return served{}, err
	}
	for typ := range x.Plugins {
		if err := os.Symlink(self, filepath.Join(bin, typ)); err != nil {
			return served{}, err
		}
	}
	l, remove, err := listen(ctx, bin)
	if err != nil {
		return served{}, fmt.Errorf("the socket of the delegates: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			wg.Go(func() { b.answerTo(ctx, conn) })
		}
	})
	return served{
		path: bin,
		run: func(ctx context.Context, c delegatetest.Invocation) outcome {
			return b.execute(ctx, exec.CommandContext(ctx, p.Path), p.Env, c)
		},
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

// begin starts a plugin.
func (b *bench) begin(cmd *exec.Cmd) error {
	start := (*exec.Cmd).Start
	if b.node != nil {
		start = func(cmd *exec.Cmd) error { return b.node.Start(cmd) }
	}
	b.mu.Lock() // a delegate of the plugin asks for b.plugins
	defer b.mu.Unlock()
	if err := start(cmd); err != nil {
		return err
	}
	b.plugins = append(b.plugins, cmd.Process.Pid)
	return nil
}

// execute runs cmd as runtimes run a plugin, with env before the environment of c.
func (b *bench) execute(ctx context.Context, cmd *exec.Cmd, env []string, c delegatetest.Invocation) outcome {
	cmd.WaitDelay = leftBehind
	c.Env = slices.Concat([]string{raceEnv}, env, c.Env)
	var err error
	o := outcome{Outcome: delegatetest.RunPlugin(ctx, func(_ context.Context, _ delegate.Exec, env []string, stdin io.Reader, stdout, stderr io.Writer) error {
		cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, stdin, stdout, stderr
		if err = b.begin(cmd); err == nil {
			err = cmd.Wait()
		}
		return err
	}, nil, c)}
	o.Status = -1
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		o.late, o.how = true, "it did not end in time and was killed (Timeout)"
	case errors.Is(err, exec.ErrWaitDelay):
		o.how = "it ended, and left a process behind that keeps its stdout or stderr open: a runtime waits for that"
	case cmd.ProcessState != nil && cmd.ProcessState.ExitCode() >= 0:
		o.Status = cmd.ProcessState.ExitCode()
	default:
		o.how = fmt.Sprint("it did not run: ", err)
		if cmd.ProcessState != nil {
			o.how = "it was ended by a " + cmd.ProcessState.String()
		}
	}
	return o
}

// answerTo serves the process of a delegate. The context of the fake ends with the
// process.
func (b *bench) answerTo(ctx context.Context, conn net.Conn) {
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
	b.mu.Lock()
	b.delegates = append(b.delegates, q.Parents)
	fakes := b.exec
	b.mu.Unlock()
	_ = json.NewEncoder(conn).Encode(perform(ctx, fakes, q)) // on an error the process has ended
}

// said returns the line that a delegate writes to stderr.
func said(command, plugin string) string { return "conform: " + command + " of " + plugin + "\n" }

func perform(ctx context.Context, x *delegatetest.Exec, q request) (r reply) {
	out, err := x.ExecPlugin(ctx, q.Plugin, q.Stdin, q.Environ)
	r.Stdout = out
	if err != nil && !errors.As(err, &r.Error) {
		r.Die = true
	}
	return r
}
