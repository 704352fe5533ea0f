//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/metacni/metacni/examples/lab/host"
)

// A rig is the environment of the measurements.
type rig struct {
	options
	work   string
	hosted bool // whether this is a private host, with namespaces
	stderr *os.File
	pods   int

	spaces []string // existing network namespaces

	contenders []contender
	notes      []string // what was not measured, and why
}

// file returns a path in the working directory.
func (r *rig) file(elem ...string) string { return filepath.Join(append([]string{r.work}, elem...)...) }

// A pod is a container to attach.
type pod struct{ id, netns, args string }

// pod returns a new pod, with a network namespace on a private host.
func (r *rig) pod() (pod, error) {
	r.pods++
	p := pod{id: "bench-" + strconv.Itoa(r.pods)}
	if !r.hosted {
		p.netns = r.file("netns", p.id)
		return p, nil
	}
	netns, err := host.NewNS(p.id)
	if err == nil {
		p.netns, r.spaces = netns, append(r.spaces, netns)
	}
	return p, err
}

// sweep removes the namespaces. It runs after a round, as the kernel deletes
// them in the background.
func (r *rig) sweep() (err error) {
	for _, netns := range r.spaces {
		err = errors.Join(err, host.RemoveNS(netns))
	}
	r.spaces = nil
	return err
}

// A call is one run of a program.
type call struct {
	program string // in work/bin
	command string // CNI_COMMAND
	pod     pod
	stdin   string   // path of a file
	args    []string // if it does not run as a plugin
}

func (c call) String() string {
	return strings.Join(strings.Fields(c.program+" "+c.command+" "+strings.Join(c.args, " ")), " ")
}

// A sample is the cost of one run. All but the time includes the delegates that
// the program waited for.
type sample struct {
	wall, cpu time.Duration
	faults    int64 // page faults without I/O
}

// run runs a program, which must succeed.
func (r *rig) run(ctx context.Context, c call) (sample, error) {
	return r.start(ctx, c, nil)
}

// A peak is the peak memory of a program without its children.
type peak struct {
	bytes  float64
	atMost bool // bytes is an upper bound, as launch itself used as much
}

func (p peak) String() string {
	if p.atMost {
		return "≤ " + mb(p.bytes)
	}
	return mb(p.bytes)
}

// peak runs a program by testdata/launch and returns its peak memory.
func (r *rig) peak(ctx context.Context, c call) (p peak, err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return p, err
	}
	_, err = r.start(ctx, c, write)
	_ = write.Close()
	text, _ := io.ReadAll(read)
	_ = read.Close()
	if err != nil {
		return p, err
	}
	var program, launch float64
	if _, err := fmt.Sscan(string(text), &program, &launch); err != nil {
		return p, fmt.Errorf("launch printed %q: %w", text, err)
	}
	return peak{bytes: program * 1024, atMost: program <= launch}, nil
}

// start runs a program. If report is not nil, testdata/launch runs it and
// reports its memory there.
func (r *rig) start(ctx context.Context, c call, report *os.File) (sample, error) {
	_, s, err := r.output(ctx, c, report)
	return s, err
}

// output is start, and returns what the program printed too.
func (r *rig) output(ctx context.Context, c call, report *os.File) (out []byte, s sample, err error) {
	if err := ctx.Err(); err != nil {
		return nil, s, context.Cause(ctx)
	}
	stdin, err := os.Open(c.stdin)
	if err != nil {
		return nil, s, err
	}
	defer func() { _ = stdin.Close() }()
	// A result fits into the buffer of a pipe; longer output is discarded.
	read, write, err := os.Pipe()
	if err != nil {
		return nil, s, err
	}
	defer func() { _, _ = read.Close(), write.Close() }()
	stdout := write
	if c.args != nil {
		if stdout, err = os.OpenFile(os.DevNull, os.O_WRONLY, 0); err != nil {
			return nil, s, err
		}
		defer func() { _ = stdout.Close() }()
	}
	argv := append([]string{r.file("bin", c.program)}, c.args...)
	attr := &os.ProcAttr{Dir: "/", Env: r.environ(c), Files: []*os.File{stdin, stdout, r.stderr}}
	if report != nil {
		argv = append([]string{r.file("bin", "launch")}, argv...)
		attr.Files = append(attr.Files, report)
	}

	start := time.Now()
	p, err := os.StartProcess(argv[0], argv, attr)
	if err != nil {
		return nil, s, err
	}
	stop := context.AfterFunc(ctx, func() { _ = p.Kill() })
	state, err := p.Wait()
	s.wall = time.Since(start)

	if stop(); ctx.Err() != nil {
		return nil, s, fmt.Errorf("%s: %w", c, context.Cause(ctx))
	}
	if err != nil {
		return nil, s, err
	}
	_ = write.Close()
	out, err = io.ReadAll(read)
	if err != nil {
		return nil, s, err
	}
	if !state.Success() {
		return nil, s, fmt.Errorf("%s: %s: %s", c, state, out)
	}
	if (c.command == "ADD" || c.command == "VERSION") && !bytes.Contains(out, []byte(`"cniVersion"`)) {
		return nil, s, fmt.Errorf("%s printed %q", c, out)
	}
	s.cpu = state.UserTime() + state.SystemTime()
	usage, ok := state.SysUsage().(*syscall.Rusage)
	if !ok {
		return nil, s, errors.New("no resource usage")
	}
	s.faults = usage.Minflt
	return out, s, nil
}

func (r *rig) environ(c call) []string {
	env := []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	if c.command != "" {
		env = append(env, "CNI_COMMAND="+c.command, "CNI_PATH="+r.file("bin"))
	}
	if c.pod.id != "" {
		env = append(env, "CNI_CONTAINERID="+c.pod.id, "CNI_NETNS="+c.pod.netns, "CNI_IFNAME=eth0")
	}
	if c.pod.args != "" {
		env = append(env, "CNI_ARGS="+c.pod.args)
	}
	return env
}
