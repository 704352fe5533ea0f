package matrix

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// TestMatrixDrafts runs the commands of each draft on a host of its own and sees that they show
// what the draft says. It is not parallel to TestMatrix: both build plugins.
func TestMatrixDrafts(t *testing.T) {
	if !*all {
		t.Skip("builds and runs all plugins: -all")
	}
	b := newBuilder(t)
	commands := regexp.MustCompile("(?s)```sh\n(.*?)```")
	for _, c := range causes() {
		t.Run(c.draft, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(filepath.Join("issues", c.draft+".md"))
			nodetest.OK(t, err)
			script := commands.FindSubmatch(text)
			if script == nil {
				t.Fatal("it has no commands")
			}
			paths, missing := b.executables(c)
			for name, err := range missing {
				if strings.Contains(string(script[1]), "/opt/cni/bin/"+name) {
					t.Skipf("%s cannot be built: %v", name, err)
				}
			}
			out := hosted(t, string(script[1]), paths)
			if !strings.Contains(out, c.shows) || c.lacks != "" && strings.Contains(out, c.lacks) {
				t.Errorf("the commands print %s\nwant %q, and not %q", out, c.shows, c.lacks)
			}
		})
	}
}

// executables returns the paths of the plugins, of a version that has the cause, and why some
// are missing.
func (b *builder) executables(c cause) (paths []string, missing map[string]error) {
	missing = make(map[string]error)
	for _, p := range plugins() {
		if p.name != p.executable() || p.module == reference && (p.version == newest) != (c.fixed != newest) {
			continue
		}
		path, err := b.path(p)
		if err != nil {
			missing[p.executable()] = err
			continue
		}
		paths = append(paths, path)
	}
	return paths, missing
}

// hosted runs a script in new namespaces that have the plugins at /opt/cni/bin, and returns
// what it prints.
func hosted(t *testing.T, script string, plugins []string) string {
	t.Helper()
	const host = `set -e
mount -t tmpfs none /opt
mkdir -p /opt/cni/bin
cp "$@" /opt/cni/bin
for dir in /run /tmp /var/lib; do mount -t tmpfs none $dir; done
mkdir -p /run/netns
cd /
set +e
`
	args := []string{"--net", "--mount", "bash", "-c", host + script, "bash"}
	if os.Getuid() != 0 {
		args = append([]string{"--user", "--map-root-user"}, args...)
	}
	out, err := exec.Command("unshare", append(args, plugins...)...).CombinedOutput()
	if err != nil {
		t.Logf("the last command: %v", err)
	}
	return fmt.Sprintf("%s\n", out)
}
