package power

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// A process that serves a disk must not use its file system: it could not end while it waits
// for itself. So the test serves disks, and children of it attach and mount them. Parent and
// child exchange lines.
const childEnv = "METACNI_POWER_CHILD" // role, file system, scenario, directories; one a line

const (
	worker = "worker" // runs the scenario on the disk 0
	reader = "reader" // looks at what crashes have left on the disk 1
)

const begin = "begin" // the worker's first line

// A rig is a child.
type rig struct {
	fileSystem
	scenario
	dir  string // of the test
	temp string // with a short path, for sockets

	mu  sync.Mutex
	in  *bufio.Reader
	out io.Writer
}

// child is the main function of a child.
func child(text string) int {
	args := strings.Split(text, "\n")
	r := &rig{fileSystem: fileSystemOf(args[1]), scenario: scenarioOf(args[2]), dir: args[3], temp: args[4], in: bufio.NewReader(os.Stdin), out: os.Stdout}
	do := r.work
	if args[0] == reader {
		do = r.read
	}
	if err := do(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (r *rig) path(name string) string { return filepath.Join(r.dir, name) }

// ask writes a line to the parent, and returns its answer.
func (r *rig) ask(line string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := fmt.Fprintln(r.out, line)
	if err == nil {
		line, err = r.in.ReadString('\n')
	}
	if err != nil {
		os.Exit(2) // the parent is gone
	}
	return strings.TrimSuffix(line, "\n")
}

// work makes the file system and runs the scenario.
func (r *rig) work(ctx context.Context) (err error) {
	d, err := Attach(r.path("fuse/0"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if err := run(ctx, append(r.mkfs, d.Path)...); err != nil {
		return err
	}
	if err := r.mount(d); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.unmount()) }()
	if err := syncAll(r.path("mnt")); err != nil {
		return err
	}
	r.ask(begin)
	return r.run(&work{ctx, r, r.path("mnt")})
}

// read looks at the disk again and again, with the promises that the parent says. It answers
// with what is wrong.
func (r *rig) read(ctx context.Context) error {
	for answer := r.ask(""); answer != ""; {
		l := &left{Context: ctx, dir: r.path("mnt"), temp: r.temp}
		if err := json.Unmarshal([]byte(answer), &l.made); err != nil {
			return err
		}
		wrong := ""
		if err := r.look(l); err != nil {
			wrong = strings.ReplaceAll(err.Error(), "\n", " ")
		}
		answer = r.ask(wrong)
	}
	return nil
}

// look mounts the disk as a machine does that starts again. The device is new, so that nothing of
// the disk before is cached.
func (r *rig) look(l *left) (err error) {
	d, err := Attach(r.path("fuse/1"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if r.repair != nil {
		_ = run(l, append(slices.Clone(r.repair), d.Path)...) // it fails if it has repaired something
	}
	if err := r.mount(d); err != nil {
		return err
	}
	return errors.Join(r.holds(l), r.unmount())
}

func (r *rig) mount(d *Device) error {
	if err := unix.Mount(d.Path, r.path("mnt"), r.kind, 0, r.options); err != nil {
		return fmt.Errorf("mount %s: %w", r.kind, err)
	}
	return nil
}

func (r *rig) unmount() error { return unix.Unmount(r.path("mnt"), 0) }

func run(ctx context.Context, args ...string) error {
	if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil { //nolint:gosec // programs of the rig
		return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// start runs a child, and answers its lines until answer returns false.
func start(ctx context.Context, program, role, dir, temp string, fs fileSystem, s scenario, answer func(line string) (string, bool)) error {
	cmd := exec.CommandContext(ctx, program) //nolint:gosec // this program, or a mutant of it
	cmd.Env = append(os.Environ(), childEnv+"="+strings.Join([]string{role, fs.name, s.name, dir, temp}, "\n"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewReader(out)
	for {
		var line string
		if line, err = lines.ReadString('\n'); err != nil {
			break // the child has ended
		}
		reply, more := answer(strings.TrimSuffix(line, "\n"))
		if _, err = io.WriteString(in, reply+"\n"); err != nil || !more {
			break
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if err := errors.Join(err, cmd.Wait()); err != nil {
		return fmt.Errorf("%s of %s on %s: %w\n%s", role, s.name, fs.name, err, &stderr)
	}
	return nil
}
