package delegate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
)

func (p *Process) execPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	giveUp := time.Now().Add(busyTimeout)
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		if err := ctxErr(ctx); err != nil {
			return nil, &notRunError{err}
		}
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
	c, err := p.start(ctx, path, environ)
	if err != nil {
		return nil, &notRunError{err}
	}
	defer c.close()
	startedIn(ctx)(c.pid)
	status, end := c.attend(ctx, stdin, p.graceIn)
	c.drain(p.waitDelay())
	printed := c.stdout.kept.Bytes()
	switch {
	case c.stdout.over:
		return nil, withCtxErr(ctx, fmt.Errorf("stopped: more than %d bytes on stdout", p.maxStdout()))
	case status == nil:
		return printed, nil
	case end != nil:
		if said := errorObject(printed); said != nil {
			status = said
		}
		return nil, fmt.Errorf("stopped (%w): %w", status, end)
	}
	return nil, failure(printed, &c.stderr, stdin, status)
}

// graceIn is the grace period of a plugin whose context has ended.
func (p *Process) graceIn(ctx context.Context) time.Duration {
	var turn *turnOverError
	if errors.As(context.Cause(ctx), &turn) {
		return min(turn.grace, p.grace())
	}
	return p.grace()
}

// failure makes an error of what a plugin that failed has printed.
func failure(stdout []byte, stderr *capture, stdin []byte, exit error) error {
	if said := errorObject(stdout); said != nil {
		return said
	}
	if line := stderr.lastLine(); len(line) > 0 {
		return fmt.Errorf("%w, with no error object on stdout; last on stderr: %s", exit, noise(line, stdin))
	}
	return fmt.Errorf("%w, with no error object on stdout", exit)
}

// errorObject returns the error object that is what a plugin printed, or that
// is on the last lines of it, or nil.
func errorObject(stdout []byte) error {
	for _, text := range [][]byte{stdout, stdout[bytes.LastIndex(stdout, []byte("\n{"))+1:]} {
		var e types.Error
		if err := json.Unmarshal(text, &e); err == nil && (e.Code != types.ErrUnknown || e.Msg != "") {
			return &e
		}
	}
	return nil
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
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT}
	fd, err := unix.Openat2(int(root.Fd()), path, how)
	for tries := 0; tries < 100 && (errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)); tries++ {
		fd, err = unix.Openat2(int(root.Fd()), path, how) // something was renamed meanwhile
	}
	if err != nil {
		return false
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o111 != 0
}
