package e2e

import (
	"bufio"
	"fmt"
	"go/format"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// TestTutorial follows the pages of examples/guide as a reader does, one after the other, from
// an empty directory on: it writes the files, types the commands into one shell, and
// compares what they print where a page shows it.
func TestTutorial(t *testing.T) {
	n := newNode(t)
	for _, name := range []string{"bash", "ip", "nft", "nsenter", "unshare"} {
		n.program(name)
	}
	if out, err := exec.Command("unshare", "--user", "--map-root-user", "--net", "--mount", "true").CombinedOutput(); err != nil {
		t.Skipf("needs user namespaces: unshare: %v: %s", err, out)
	}
	pages, err := filepath.Glob("../../examples/guide/*.md")
	if err != nil || len(pages) != 4 {
		t.Fatalf("the pages are %q, %v", pages, err)
	}
	checkout, err := filepath.Abs("../..")
	nodetest.OK(t, err)
	dir := t.TempDir()
	sh := newTerminal(t, dir)
	for _, page := range pages {
		follow(t, sh, page, checkout, dir)
	}
}

// follow does what a page says, in the shell sh and the directory dir.
func follow(t *testing.T, sh *terminal, page, checkout, dir string) {
	t.Helper()
	text, err := os.ReadFile(page)
	nodetest.OK(t, err)
	printed, ran := "", 0
	for _, b := range fencedBlocks(string(text)) {
		switch {
		case b.lang == "sh":
			printed = sh.run(clone.ReplaceAllString(b.text, "ln -s "+checkout+" ../metacni"))
			ran++
		case b.lang == "text":
			nodetest.Equal(t, page+": what a command prints", steady(printed, dir), steady(b.text, dir))
		case b.file != "":
			if filepath.Ext(b.file) == ".go" {
				formatted, err := format.Source([]byte(b.text))
				nodetest.OK(t, err)
				nodetest.Equal(t, page+": "+b.file+" after gofmt", string(formatted), b.text)
			}
			nodetest.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, b.file)), 0o700))
			nodetest.OK(t, os.WriteFile(filepath.Join(dir, b.file), []byte(b.text), 0o600))
		default:
			t.Fatalf("%s: a block of %q is neither run nor compared, and names no file:\n%s", page, b.lang, b.text)
		}
	}
	if ran == 0 {
		t.Errorf("%s has no commands", page)
	}
}

// clone is a command of a page that gets the SDK, for which the test takes this checkout.
var clone = regexp.MustCompile(`git clone .* \.\./metacni`)

// A fencedBlock is a fenced block of a page.
type fencedBlock struct {
	lang string
	file string // where the text before it says so: "`NAME`:"
	text string
}

var fileName = regexp.MustCompile("`([a-z_./]+)`[^`]*:$")

// fencedBlocks returns those of a page.
func fencedBlocks(page string) (blocks []fencedBlock) {
	before, block := "", (*fencedBlock)(nil)
	for line := range strings.Lines(page) {
		lang, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && block == nil:
			block = &fencedBlock{lang: strings.TrimSpace(lang)}
			if m := fileName.FindStringSubmatch(before); m != nil {
				block.file = m[1]
			}
		case fence:
			blocks, block = append(blocks, *block), nil
		case block != nil:
			block.text += line
		case strings.TrimSpace(line) != "":
			before = strings.TrimSpace(line)
		}
	}
	return blocks
}

// steady returns text without what differs from run to run, and without spaces
// at the ends of lines.
func steady(text, dir string) string {
	text = strings.ReplaceAll(text, dir, "/home/me/mine")
	for _, s := range []struct{ expr, text string }{
		{`\b([0-9a-f]{2}:){5}[0-9a-f]{2}\b`, "MAC"},
		{`\bveth[0-9a-f]{8}\b`, "vethNAME"},
		{`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`, "TIME"},
		{`\b\d+\.\d+s\b`, "SECONDS"},
		{`(?m)  \d+s$`, "  AGE"},
		{`(?m)[ \t]+$`, ""},
		// ip says so of every namespace that other tests remove meanwhile.
		{`(?m)^Error: Peer netns reference is invalid\.\n`, ""},
	} {
		text = regexp.MustCompile(s.expr).ReplaceAllString(text, s.text)
	}
	return strings.TrimSpace(text)
}

// A terminal is a shell, and what it prints.
type terminal struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Reader
}

// newTerminal starts a shell in dir without any configuration of the user's.
func newTerminal(t *testing.T, dir string) *terminal {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "--norc", "--noprofile", "-s")
	cmd.Dir = dir
	cmd.Env = append(strangers(t), "SHELL="+cmd.Path)
	in, err := cmd.StdinPipe()
	nodetest.OK(t, err)
	r, wr, err := os.Pipe()
	nodetest.OK(t, err)
	cmd.Stdout, cmd.Stderr = wr, wr
	nodetest.OK(t, cmd.Start())
	_ = wr.Close()
	// A command that reads what is typed next waits for the end of the input.
	patience := time.AfterFunc(20*time.Minute, func() { _ = in.Close() })
	t.Cleanup(func() {
		patience.Stop()
		_ = in.Close()
		_ = cmd.Wait()
		_ = r.Close()
	})
	return &terminal{t: t, in: in, out: bufio.NewReader(r)}
}

// run types commands, and returns what they print. One that fails fails the
// test.
func (sh *terminal) run(commands string) (printed string) {
	sh.t.Helper()
	const end = "-- the end --\n"
	// A command may leave another shell running, which gets the next line.
	if _, err := fmt.Fprintf(sh.in, "set -e\n%s\necho '%s'\n", commands, strings.TrimSpace(end)); err != nil {
		sh.t.Fatal(err)
	}
	for {
		line, err := sh.out.ReadString('\n')
		if text, ok := strings.CutSuffix(line, end); ok {
			return printed + text
		}
		printed += line
		if err != nil {
			sh.t.Fatalf("%s\nfails:\n%s", commands, printed)
		}
	}
}
