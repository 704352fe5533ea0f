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
	"sync"

	"github.com/containernetworking/cni/pkg/types"
)

// A Binary is a plugin as an executable file, for [Conform]. Its delegates are
// processes as well: the test's own executable, which [Main] lets play them.
type Binary struct {
	Path string   // of the executable
	Env  []string // of its environment, beside the variables of CNI; there is no more
}

// socketName is in the directory of the delegates' executables.
const socketName = "delegatetest.sock"

// A request is a call of a delegate, from its process to the test's.
type request struct {
	Plugin  string
	Environ []string
	Stdin   []byte
}

// A reply is what the process is to do.
type reply struct {
	Stdout []byte
	Error  *types.Error // to be printed
	Die    bool         // instead
}

func (p Binary) serve(ctx context.Context, x *Exec, dir string) (host, error) {
	self, err := os.Executable()
	if err != nil {
		return host{}, err
	}
	if _, ok := delegateSocket(); ok {
		return host{}, errors.New("this process is a delegate: TestMain must call delegatetest.Main")
	}
	bin := filepath.Join(dir, ".delegates") // a name that Config.Stdin is not likely to use
	if err := os.Mkdir(bin, 0o700); err != nil {
		return host{}, err
	}
	for typ := range x.Plugins {
		if err := os.Symlink(self, filepath.Join(bin, typ)); err != nil {
			return host{}, err
		}
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", filepath.Join(bin, socketName))
	if err != nil {
		return host{}, err
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
		},
	}, nil
}

// run runs the executable as runtimes do.
func (p Binary) run(ctx context.Context, c Call) Outcome {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, p.Path)
	c.Env = append(append([]string{}, p.Env...), c.Env...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.environ(), bytes.NewReader(c.Stdin), &stdout, &stderr
	err := cmd.Run()
	o := Outcome{Status: -1, Stdout: stdout.Bytes(), Stderr: stderr.Bytes()}
	if cmd.ProcessState != nil {
		o.Status = cmd.ProcessState.ExitCode()
	}
	if o.Status < 0 {
		o.Stderr = fmt.Append(o.Stderr, err)
	}
	return o
}

// answerTo serves the process of a delegate. When the process has ended, so
// does the context of its plugin.
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
		_, _ = io.Copy(io.Discard, conn) // until the end
		cancel()
	}()
	_ = json.NewEncoder(conn).Encode(perform(ctx, x, q)) // nobody waits for it if that fails
}

// said is what a delegate writes to stderr.
func said(command, plugin string) string { return "delegatetest: " + command + " of " + plugin + "\n" }

func perform(ctx context.Context, x *Exec, q request) (r reply) {
	defer func() {
		if recover() != nil { // see PanicOn
			r = reply{Die: true}
		}
	}()
	out, err := x.ExecPlugin(ctx, q.Plugin, q.Stdin, q.Environ)
	r.Stdout = out
	if err != nil && !errors.As(err, &r.Error) {
		r.Die = true
	}
	return r
}
