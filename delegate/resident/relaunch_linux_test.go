package resident_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate/resident"
)

// A file that was replaced while its resident ran is not executed unless it
// passes the checks.
func TestRelaunchChecksTheFileAgain(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		swap func(dir string) error // makes 10-it another
		want string
	}{
		"writable by all": {func(dir string) error { return other(dir, 0o777) }, "other users may write to it"},
		"a group's":       {func(dir string) error { return other(dir, 0o775) }, "other users may write to it"},
		"no executable":   {func(dir string) error { return other(dir, 0o644) }, "not executable"},
		"another user's": {func(dir string) error {
			return errors.Join(other(dir, 0o755), os.Chown(filepath.Join(dir, "10-it"), 65534, 65534))
		}, "it belongs to user 65534"},
		"a link to another": {func(dir string) error {
			elsewhere := filepath.Join(dir, "elsewhere")
			return errors.Join(other(dir, 0o777), os.Rename(filepath.Join(dir, "10-it"), elsewhere), os.Symlink(elsewhere, filepath.Join(dir, "10-it")))
		}, "other users may write to it"},
		"no file":           {func(dir string) error { return os.Remove(filepath.Join(dir, "10-it")) }, "no such file"},
		"an open directory": {func(dir string) error { return os.Chmod(dir, 0o777) }, "other users may write to it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "another user's" && os.Geteuid() != 0 {
				t.Skip("needs root, to give a file away")
			}
			n, l := launcher(t, "10-it")
			n.SetRelaunch(time.Millisecond)
			n.start()
			ok(t, tt.swap(n.Dir))
			_, err := n.exec(t.Context(), "it", "ADD", "die")
			wantCode(t, err, 11)
			s := n.await("10-it skipped", 1)
			if !errors.Is(s.Err, resident.ErrSkipped) || !strings.Contains(s.Err.Error(), tt.want) {
				t.Errorf("err = %v, want %q", s.Err, tt.want)
			}
			if got := strings.Count(l.String(), "it was launched"); got != 1 {
				t.Errorf("launched %d times", got)
			}
			if strings.Contains(l.String(), "intruder") {
				t.Error("what replaced it has run")
			}
		})
	}
}

// other replaces 10-it in dir by a script that prints "intruder".
func other(dir string, mode os.FileMode) error {
	path := filepath.Join(dir, "10-it")
	return errors.Join(
		os.WriteFile(path+"~", []byte("#!/bin/sh\necho intruder\n"), 0o600), os.Chmod(path+"~", mode), os.Rename(path+"~", path),
	)
}

func TestRelaunchAfterTheFileIsRepaired(t *testing.T) {
	t.Parallel()
	n, _ := launcher(t, "10-it")
	n.SetRelaunch(time.Millisecond)
	n.start()
	ok(t, os.Rename(filepath.Join(n.Dir, "10-it"), filepath.Join(n.Dir, "kept")))
	_, err := n.exec(t.Context(), "it", "ADD", "die")
	wantCode(t, err, 11)
	n.await("10-it skipped", 1)
	ok(t, os.Rename(filepath.Join(n.Dir, "kept"), filepath.Join(n.Dir, "10-it")))
	n.await("10-it ready", 2)
	if got := n.states(); len(got) != 1 || got[0] != "10-it ready" {
		t.Errorf("%q", got)
	}
}

// The interpreter reads the checked file, even if its path is replaced.
func TestScriptIsLaunchedFromTheCheckedDescriptor(t *testing.T) {
	t.Parallel()
	n, _ := launcher(t)
	n.SetRelaunch(time.Millisecond) // another test may fork while the script is written
	exe, err := os.Executable()
	ok(t, err)
	ok(t, os.WriteFile(filepath.Join(n.Dir, "10-it"), fmt.Appendf(nil, "#!/bin/sh\n[ \"$0\" = /proc/self/fd/4 ] && exec %q\n", exe), 0o700))
	n.start()
	n.await("10-it ready", 1)
	_, err = n.exec(t.Context(), "it", "ADD", "c1")
	ok(t, err)
}
