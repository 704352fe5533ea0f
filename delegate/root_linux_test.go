package delegate_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate"
)

func TestFindInPath(t *testing.T) {
	t.Parallel()
	one, two := t.TempDir(), t.TempDir()
	for path, mode := range map[string]os.FileMode{one + "/plain": 0o644, two + "/plain": 0o755, one + "/both": 0o755, two + "/both": 0o755} {
		if err := os.WriteFile(path, []byte("x"), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(one+"/dir", 0o755), os.Symlink(two+"/plain", one+"/link")); err != nil {
		t.Fatal(err)
	}
	p := new(delegate.Process)
	for plugin, want := range map[string]string{
		"both": one + "/both", "plain": two + "/plain", "link": one + "/link",
		"dir": "", "absent": "", "": "", "../" + filepath.Base(one) + "/both": "", "a\x00b": "",
	} {
		got, err := p.FindInPath(plugin, []string{"", one + "/", "/does/not/exist", two})
		if got != want || (want == "") != errors.Is(err, delegate.ErrPluginNotFound) {
			t.Errorf("%q is at %q, want %q (%v)", plugin, got, want, err)
		}
	}
	if _, err := (&delegate.Process{Root: "/does/not/exist"}).FindInPath("both", []string{one}); !errors.Is(err, delegate.ErrPluginNotFound) {
		t.Errorf("no root: %v", err)
	}
}

// jail is a root directory with a shell, a plugin, and links that point out.
func jail(t *testing.T) (root, outside string) {
	t.Helper()
	root, outside = t.TempDir(), t.TempDir()
	write := func(path, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	write(root+"/opt/cni/bin/plugin", "#!/bin/sh\nread who </who; echo \"{\\\"who\\\":\\\"$who\\\",\\\"in\\\":\\\"$(pwd)\\\"}\"\n")
	write(root+"/who", "jail\n")
	write(outside+"/escaped", "#!/bin/sh\necho outside\n")
	for link, target := range map[string]string{
		"absolute": "/opt/cni/bin/plugin", // of the root, not of the host
		"upwards":  "../../../../../../../../../../../../../../opt/cni/bin/plugin",
		"file":     outside + "/escaped",
		"relative": "../../../../../../../../../../../../../../" + outside + "/escaped",
	} {
		if err := os.Symlink(target, root+"/opt/cni/bin/"+link); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, root+"/opt/cni/dir"); err != nil {
		t.Fatal(err)
	}
	return root, outside
}

// No link leads out of the root. D48, G12.
func TestG12RootIsNotLeft(t *testing.T) {
	t.Parallel()
	root, outside := jail(t)
	p := &delegate.Process{Root: root}
	for _, name := range []string{"plugin", "absolute", "upwards"} {
		if got, err := p.FindInPath(name, []string{"/opt/cni/bin"}); err != nil || got != "/opt/cni/bin/"+name {
			t.Errorf("%s is at %q: %v", name, got, err)
		}
	}
	for _, name := range []string{"file", "relative", "escaped"} {
		for _, dir := range []string{"/opt/cni/bin", "/opt/cni/dir", outside, "/.." + outside} {
			if got, err := p.FindInPath(name, []string{dir}); !errors.Is(err, delegate.ErrPluginNotFound) {
				t.Errorf("%s in %s is at %q: %v", name, dir, got, err)
			}
		}
	}
}

// The child alone changes its root. D48.
func TestRunInRoot(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to change the root directory of a child")
	}
	ldd, err := exec.CommandContext(t.Context(), "ldd", "/bin/sh").Output()
	if err != nil {
		t.Skipf("needs ldd(1), to copy a shell with its libraries: %v", err)
	}
	root, _ := jail(t)
	for _, path := range append([]string{"/bin/sh"}, regexp.MustCompile(`/[^ ]+`).FindAllString(string(ldd), -1)...) {
		data, err := os.ReadFile(path)
		if err == nil {
			err = errors.Join(os.MkdirAll(filepath.Dir(root+path), 0o755), os.WriteFile(root+path, data, 0o755))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	before, err := os.Readlink("/proc/self/root")
	if err != nil {
		t.Fatal(err)
	}
	p := &delegate.Process{Root: root}
	for _, name := range []string{"plugin", "absolute", "upwards"} {
		path, err := p.FindInPath(name, []string{"/opt/cni/bin"})
		if err != nil {
			t.Fatal(err)
		}
		out, err := p.ExecPlugin(t.Context(), path, nil, nil)
		if err != nil || strings.TrimSpace(string(out)) != `{"who":"jail","in":"/"}` {
			t.Errorf("%s printed %q: %v", name, out, err)
		}
	}
	if after, err := os.Readlink("/proc/self/root"); err != nil || after != before {
		t.Errorf("this process's root was %q and is %q: %v", before, after, err)
	}
}
