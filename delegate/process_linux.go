package delegate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
)

func (p *Process) execPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	giveUp := time.Now().Add(busyTimeout)
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		out, err := p.try(ctx, path, stdin, environ)
		if !errors.Is(err, syscall.ETXTBSY) || time.Now().After(giveUp) {
			return out, err
		}
		select {
		case <-ctx.Done():
			return nil, withCtxErr(ctx, err)
		case <-time.After(wait):
		}
	}
}

// try runs the executable once, from fork to reaping.
func (p *Process) try(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	cmd := &exec.Cmd{
		Path: path, Args: []string{path},
		Env:         append([]string{}, environ...), // not nil: that would be our own environment
		ExtraFiles:  inherited(ctx),
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	if p.Root != "" {
		cmd.Dir, cmd.SysProcAttr.Chroot = "/", p.Root
	}
	pipes, err := p.start(cmd)
	if err != nil {
		return nil, err
	}
	defer pipes.close(p.waitDelay())
	exited := exit(cmd.Process.Pid)

	started(ctx)(cmd.Process.Pid)
	go pipes.feed(stdin)
	var stop error
	select {
	case <-exited:
	case <-ctx.Done():
		stop = ctxErr(ctx)
	case stop = <-pipes.flooded:
	}
	if stop != nil {
		p.kill(cmd.Process.Pid, exited)
	}
	<-exited
	waitErr := cmd.Wait()
	if waitErr == nil || stop == nil {
		pipes.drain(p.waitDelay())
	}
	if waitErr == nil {
		select {
		case stop = <-pipes.flooded:
			return nil, stop
		default:
			return pipes.stdout.bytes(), nil
		}
	}
	if stop != nil {
		return nil, fmt.Errorf("stopped (%w): %w", waitErr, stop)
	}
	return nil, said(pipes.stdout.bytes(), pipes.stderr.bytes(), waitErr)
}

// kill ends the process group of pid, which has not been reaped: its number
// cannot be another's.
func (p *Process) kill(pid int, exited <-chan struct{}) {
	_ = unix.Kill(-pid, unix.SIGTERM)
	grace := time.NewTimer(p.grace())
	defer grace.Stop()
	select {
	case <-exited:
	case <-grace.C:
	}
	// What the plugin started is in its group, and dies with it.
	_ = unix.Kill(-pid, unix.SIGKILL)
}

// exit returns a channel that is closed when pid has exited, before it is
// reaped.
func exit(pid int) <-chan struct{} {
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		for {
			if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(err, unix.EINTR) {
				return
			}
		}
	}()
	return exited
}

// said makes an error of what a plugin that failed has printed.
func said(stdout, stderr []byte, exit error) error {
	var e types.Error
	if err := json.Unmarshal(stdout, &e); err == nil && (e.Code != types.ErrUnknown || e.Msg != "") {
		return &e
	}
	if words := lastWords(stderr); words != "" {
		return fmt.Errorf("%w, with no error object on stdout; last on stderr: %s", exit, words)
	}
	return fmt.Errorf("%w, with no error object on stdout", exit)
}

// lastWords quotes the last line of stderr.
func lastWords(stderr []byte) string {
	text := bytes.TrimSpace(stderr)
	if i := bytes.LastIndexByte(text, '\n'); i >= 0 {
		text = text[i+1:]
	}
	if len(text) == 0 {
		return ""
	}
	return noise(text)
}

func (p *Process) find(plugin string, paths []string) (string, error) {
	if plugin == "" || strings.ContainsRune(plugin, os.PathSeparator) {
		return "", fmt.Errorf("%w: %q is not the name of a file", ErrPluginNotFound, plugin)
	}
	for _, dir := range paths {
		if dir == "" {
			continue // not the working directory
		}
		path := strings.TrimSuffix(dir, "/") + "/" + plugin
		if p.executable(path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: no executable %q in %q", ErrPluginNotFound, plugin, paths)
}

// executable reports whether there is an executable regular file at path, as
// a plugin in Root would see it.
func (p *Process) executable(path string) bool {
	if p.Root == "" {
		info, err := os.Stat(path)
		return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
	}
	root, err := os.Open(p.Root)
	if err != nil {
		return false
	}
	defer root.Close() //nolint:errcheck // opened to read
	fd, err := unix.Openat2(int(root.Fd()), path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return false
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o111 != 0
}
