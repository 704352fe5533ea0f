package relay_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate/relay"
)

// A file is looked at each time it is launched: one that was replaced while its
// delegate ran is not run unless it could have been launched in the first place.
func TestRelaunchLooksAtTheFileAgain(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		swap func(t *testing.T, dir string) // makes 10-it another
		want string
	}{
		"writable by all": {func(t *testing.T, dir string) { other(t, dir, 0o777) }, "others may write to it"},
		"a group's":       {func(t *testing.T, dir string) { other(t, dir, 0o775) }, "others may write to it"},
		"no executable":   {func(t *testing.T, dir string) { other(t, dir, 0o644) }, "not executable"},
		"another user's": {func(t *testing.T, dir string) {
			if os.Geteuid() != 0 {
				t.Skip("needs root, to give a file away")
			}
			ok(t, os.Chown(other(t, dir, 0o755), 65534, 65534))
		}, "it is user 65534's"},
		"a link to another": {func(t *testing.T, dir string) {
			elsewhere := t.TempDir()
			ok(t, os.Rename(other(t, dir, 0o777), filepath.Join(elsewhere, "it")))
			ok(t, os.Symlink(filepath.Join(elsewhere, "it"), filepath.Join(dir, "10-it")))
		}, "others may write to it"},
		"no file":           {func(t *testing.T, dir string) { ok(t, os.Remove(filepath.Join(dir, "10-it"))) }, "no such file"},
		"an open directory": {func(t *testing.T, dir string) { ok(t, os.Chmod(dir, 0o777)) }, "others may write to it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, l := launcher(t, "10-it")
			n.Relaunch = time.Millisecond
			n.start()
			tt.swap(t, n.Dir)
			_, err := n.exec(t.Context(), "it", "ADD", "die")
			wantCode(t, err, 11)
			s := n.await("10-it skipped", 1)
			if !errors.Is(s.Err, relay.ErrSkipped) || !strings.Contains(s.Err.Error(), tt.want) {
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

// other replaces 10-it in dir by a file of its own, that says that it has run.
func other(t *testing.T, dir string, mode os.FileMode) (path string) {
	t.Helper()
	path = filepath.Join(dir, "10-it")
	ok(t, os.WriteFile(path+"~", []byte("#!/bin/sh\necho intruder\n"), 0o600))
	ok(t, os.Chmod(path+"~", mode))
	ok(t, os.Rename(path+"~", path))
	return path
}

// A file that was mended is launched again.
func TestRelaunchAfterTheFileIsMended(t *testing.T) {
	t.Parallel()
	n, _ := launcher(t, "10-it")
	n.Relaunch = time.Millisecond
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

// A script is launched as well. It is read from the descriptor that was looked
// at, and not from its path, where another may be by then.
func TestScriptIsLaunched(t *testing.T) {
	t.Parallel()
	n, _ := launcher(t)
	n.Relaunch = time.Millisecond // another test may fork while the script is written
	exe, err := os.Executable()
	ok(t, err)
	ok(t, os.WriteFile(filepath.Join(n.Dir, "10-it"), fmt.Appendf(nil, "#!/bin/sh\n[ \"$0\" = /proc/self/fd/4 ] && exec %q\n", exe), 0o700))
	n.start()
	n.await("10-it ready", 1)
	_, err = n.exec(t.Context(), "it", "ADD", "c1")
	ok(t, err)
}
