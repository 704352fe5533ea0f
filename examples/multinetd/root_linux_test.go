package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate"
)

// With a root plugins are found and run there, and the paths they are told are
// its own: those of binDir and of the network namespace, which is known again
// at DEL (S22, D48).
func TestS22HostRoot(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to change the root directory of a child")
	}
	ldd, err := exec.CommandContext(t.Context(), "ldd", "/bin/sh").Output()
	if err != nil {
		t.Skipf("needs ldd(1), to copy a shell with its libraries: %v", err)
	}
	root := t.TempDir()
	put := func(path, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(root+path), 0o755), os.WriteFile(root+path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range append([]string{"/bin/sh"}, regexp.MustCompile(`/[^ ]+`).FindAllString(string(ldd), -1)...) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		put(path, string(text))
	}
	put("/run/netns/c1", "")
	put("/opt/cni/bin/inside", `#!/bin/sh
echo "$CNI_COMMAND $CNI_NETNS $(pwd)" >>/log
[ $CNI_COMMAND = ADD ] && echo '{"cniVersion":"1.1.0"}'
exit 0
`)
	w := newWorld(t, fmt.Sprintf(`,"chrootDir":%q`, root))
	w.exec = &executor{Process: delegate.Process{Root: w.conf.ChrootDir}, log: w.log}
	w.start(t)
	do := w.client.Funcs(t.Context())
	args := w.args(conf(`"delegates":[{"type":"inside"}]`))
	args.Netns = "/run/netns/c1"
	if err := do.Add(args); err != nil {
		t.Fatal(err)
	}
	args.Netns = "" // that of the record
	if err := do.Del(args); err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(root + "/log")
	if want := "ADD /run/netns/c1 /\nDEL /run/netns/c1 /"; err != nil || strings.TrimSpace(string(log)) != want {
		t.Errorf("the plugin wrote %q, want %q: %v", log, want, err)
	}
}
