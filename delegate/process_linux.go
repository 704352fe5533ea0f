package delegate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/cause"
	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/internal/inroot"
)

// ExecPlugin runs the executable at path, which is absolute, with stdin and
// environ. It returns what the plugin printed to stdout if the plugin exits with
// status 0. A plugin that prints more than 4 MiB is killed. An empty environ is an
// empty environment, not that of this process. The working directory of a plugin is
// the root directory.
//
// When ctx ends, the plugin's process group receives SIGTERM, and so does the
// plugin if it has left that group. After the grace period, or when the plugin
// has exited, the group receives SIGKILL, together with the plugin and its
// descendants. Descendants outside the group whose parent has exited are not
// reached. Pipes that are still open after another WaitDelay are closed. In the
// error errors.Is finds the error of the context. A plugin that exits with
// status 0 has succeeded all the same. If ctx has ended before, ExecPlugin runs
// nothing.
//
// A meta-plugin that is run by a Process needs a part of its grace period to
// undo what it did. If it gives its own plugins as long a grace period, then one
// that ignores SIGTERM uses up both: the meta-plugin is killed before it can undo
// anything. Its plugins are killed with it, and its DEL does the rest.
//
// A plugin that cannot be started is [ErrNotRun]. The error has CNI code 11
// (try again later) when the system is short of descriptors, processes or
// memory. An ADD for a network namespace that does not exist is not started
// either: CNI code 8.
//
// If the plugin fails, the error is the [*types.Error] that it printed last.
// Without one the error has the exit status and the last line of stderr. That
// line is cut where a configuration could begin, and does not hold the strings of
// stdin.
//
// An executable that is being written (ETXTBSY) is tried again until ctx ends,
// for 5 seconds at most.
//
// [*types.Error]: https://pkg.go.dev/github.com/containernetworking/cni/pkg/types#Error
func (p *Process) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	giveUp := time.Now().Add(busyTimeout)
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		if err := cause.Of(ctx); err != nil {
			return nil, notRun(err)
		}
		out, err := p.try(ctx, path, stdin, environ)
		if !errors.Is(err, syscall.ETXTBSY) || time.Now().After(giveUp) {
			return out, err
		}
		select {
		case <-ctx.Done():
			return nil, cause.Add(ctx, err)
		case <-time.After(wait):
		}
	}
}

// try runs the executable once, from fork to reaping.
func (p *Process) try(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	if err := p.checkNetNS(environ); err != nil {
		return nil, notRun(err)
	}
	c, err := p.start(ctx, path, environ)
	if err != nil {
		return nil, notRun(temporary(err))
	}
	defer c.close()
	alive, stop := context.WithCancel(ctx)
	defer stop()
	stdout := capture{limit: maxStdout}
	stderr := capture{limit: 4096, tail: true}
	passed := passed{to: p.Stderr, left: maxStderr}
	var pipes sync.WaitGroup
	pipes.Go(func() { c.send(stdin) })
	pipes.Go(func() {
		collect(c.stdout, func(b []byte) {
			if stdout.add(b); stdout.over {
				stop()
			}
		})
	})
	pipes.Go(func() {
		collect(c.stderr, func(b []byte) {
			stderr.add(b)
			passed.add(b)
		})
	})
	status := c.attend(alive, p.graceIn)
	c.finish(p.waitDelay(), &pipes)
	passed.end(max(p.waitDelay(), time.Second))
	printed := stdout.kept.Bytes()
	switch {
	case stdout.over:
		return nil, cause.Add(ctx, fmt.Errorf("killed: more than %d bytes on stdout", maxStdout))
	case status == nil:
		return printed, nil
	}
	return nil, cause.Add(ctx, failure(printed, &stderr, stdin, status))
}

// checkNetNS refuses an ADD in environ for a network namespace that does not exist. If
// the directory of its path does not exist either this is not certain, and left to the
// plugin: the namespace may be mounted where this process does not see it. A plugin sees
// the same processes as this one.
func (p *Process) checkNetNS(environ []string) error {
	vars := make(map[string]string)
	for _, kv := range environ {
		key, value, _ := strings.Cut(kv, "=")
		vars[key] = value
	}
	path := vars["CNI_NETNS"]
	exists := func(path string) error {
		return inroot.With(p.Root, path, func(path string) error { _, err := os.Stat(path); return err })
	}
	if vars["CNI_COMMAND"] != string(CommandAdd) || path == "" || !errors.Is(exists(path), fs.ErrNotExist) {
		return nil
	}
	above := filepath.Dir(path)
	if strings.HasPrefix(path, "/proc/") {
		above = "/proc/self" // the directory of a process is gone when the process is
	}
	if exists(above) == nil {
		return types.NewError(types.ErrInvalidNetNS, "the network namespace does not exist", path)
	}
	return nil
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
		return fmt.Errorf("%w, without an error object on stdout; last line on stderr: %s", exit, noise(line, stdin))
	}
	return fmt.Errorf("%w, without an error object on stdout", exit)
}

// FindInPath returns the path of the first executable regular file called
// plugin in one of paths. Without such a file it fails with [ErrPluginNotFound].
// With a Root the path is one in Root. Relative directories are skipped. When
// this process has no file descriptors left, the error has CNI code 11 (try
// again later) and is not ErrPluginNotFound.
func (p *Process) FindInPath(plugin string, paths []string) (string, error) {
	if plugin == "" || strings.ContainsRune(plugin, os.PathSeparator) {
		return "", &markedError{fmt.Errorf("not found: %q is not the name of a file", plugin), ErrPluginNotFound}
	}
	skipped, unusable := "", ""
	for _, dir := range paths {
		if !filepath.IsAbs(dir) {
			skipped = "; relative directories are skipped"
			continue // nothing comes from the working directory
		}
		path := strings.TrimSuffix(dir, "/") + "/" + plugin
		switch err := p.executable(path); {
		case err == nil:
			return path, nil
		case temporary(err) != err: //nolint:errorlint // whether it was changed
			return "", temporary(err)
		case errors.Is(err, fs.ErrPermission) && unusable == "":
			unusable = fmt.Sprintf("; %s is not a file that can be executed", path)
		}
	}
	where := strings.Join(slices.Compact(slices.Clone(paths)), string(os.PathListSeparator))
	if where == "" {
		where = "an empty path"
	}
	return "", &markedError{fmt.Errorf("not found in %s%s%s", where, skipped, unusable), ErrPluginNotFound}
}

// executable returns nil if there is an executable regular file at path, as a
// plugin in Root would see it.
func (p *Process) executable(path string) error {
	return inroot.With(p.Root, path, func(path string) error {
		info, err := os.Stat(path)
		if err == nil && (!info.Mode().IsRegular() || info.Mode()&0o111 == 0) {
			err = fs.ErrPermission
		}
		return err
	})
}

// temporary returns err, with CNI code 11 (try again later) if it is the want of something
// that may be there again later, such as a descriptor or a process.
func temporary(err error) error {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.EAGAIN, syscall.ENOMEM} {
		if errors.Is(err, errno) {
			return fault.With(types.ErrTryAgainLater, err)
		}
	}
	return err
}
