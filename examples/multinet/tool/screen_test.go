package tool

import (
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/skel"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// wantScreen fails the test unless text fits on a screen of 80 columns and rows.
func wantScreen(t *testing.T, what, text string, rows int) {
	t.Helper()
	for line := range strings.Lines(text) {
		if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > screen {
			t.Errorf("%s is too wide: %s", what, line)
		}
	}
	if n := strings.Count(text, "\n"); n > rows {
		t.Errorf("%s has %d lines", what, n)
	}
}

// The help of each command fits on a screen, names each flag with its value, and has an example
// that can be parsed.
func TestHelpFitsOnAScreen(t *testing.T) {
	t.Parallel()
	h := newNode(t)
	wantScreen(t, "help", h.wantTool([]string{"help"}), 24)
	for _, c := range commands() {
		help := h.wantTool([]string{c.name, "--help"}, "example: multinet "+c.name+" "+c.example)
		wantScreen(t, c.name, help, 24)
		flags, _ := c.new(&tool{})
		if _, err := parse(flags, strings.Fields(c.example)); err != nil {
			t.Errorf("example of %s: %v", c.name, err)
		}
	}
}

// The list fits into 80 columns, whatever the names of pods, definitions and containers are. What
// is shortened keeps its beginning and its end.
func TestListFitsOnAScreen(t *testing.T) {
	t.Parallel()
	h := newNode(t)
	o := selected()
	o.Definition.Name = strings.Repeat("storage-", 6) + "west"
	id := strings.Repeat("0123456789abcdef", 4)
	h.attachTo(id, "K8S_POD_NAMESPACE=team-a;K8S_POD_NAME=web-frontend-production-7d9c6b5f4-x2x9p", o.JSON())
	list := h.wantTool([]string{"list"}, "0123456789ab team-a", "x2x9p net1 team-b", "-west selected added unknown")
	wantScreen(t, "list", list, 3)
	h.wantTool([]string{"list", "-o", "wide"}, id+" team-a/web-frontend-production-7d9c6b5f4-x2x9p eth0", o.Definition.String())
	h.wantTool([]string{"show", "0123456789ab"}, id)
	long := strings.Repeat("storage-", 12) + "west"
	nodetest.OK(t, h.run("ADD", `{"name":"`+long+`","type":"bridge"}`, "c1"))
	for form, whole := range map[string]bool{"table": false, "wide": true} {
		out := h.wantTool([]string{"show", "--timing", "-o", form, "c1"})
		nodetest.Equal(t, form, strings.Contains(out, long), whole)
	}
}

// Where the time of an ADD went is a table on a screen, or a list for programs.
func TestTiming(t *testing.T) {
	t.Parallel()
	h := populated(t)
	table := h.wantTool([]string{"show", "--timing", "c1"}, "STAGE NETWORK IFNAME TIME lock multi eth0 ", "record multi eth0 ",
		"ADD bridge multi eth0 ", "ADD macvlan storage net1 ", "ADD tuning storage net1 ", "whole multi eth0 ")
	wantScreen(t, "timing", table, 7)
	var list []struct {
		Stage, Network, Container, Interface string
		Seconds                              float64
	}
	nodetest.OK(t, json.Unmarshal([]byte(h.wantTool([]string{"show", "--timing", "-o", "json", "c1"})), &list))
	if last := list[5]; len(list) != 6 || last.Stage != "whole" || last.Network != "multi" || last.Container != "c1" || last.Interface != "eth0" || last.Seconds <= list[2].Seconds {
		t.Errorf("list %+v", list)
	}
	if out, err := h.tool("show", "--timing", "half"); !errors.Is(err, errNoTiming) || out != "" {
		t.Errorf("of an ADD that failed: %v, %s", err, out)
	}
	nodetest.Code(t, h.run("ADD", `{"type":"both"}`, "c1", func(a *skel.CmdArgs) { a.IfName = "eth1" }), 107)
	out, err := h.tool("show", "--timing", "c1")
	nodetest.Equal(t, "beside an ADD that failed", len(strings.Split(out, "\n")), len(strings.Split(table, "\n")))
	if !errors.Is(err, errNoTiming) || !strings.Contains(err.Error(), `network "multi", eth1`) {
		t.Errorf("of the ADD that failed: %v", err)
	}
}

// A shell completes commands, flags, forms and containers.
func TestCompletion(t *testing.T) {
	t.Parallel()
	h := populated(t)
	for _, tt := range []struct {
		words      string
		has, lacks string
	}{
		{"", "list show status gc damaged forget adopt install uninstall completion", "--dir"},
		{"list", "--dir -o", "c1"},
		{"list -o", "table wide json", "--dir"},
		{"list -o =", "table wide json", "--dir"},
		{"show --dir = " + h.state(), "c1 gone half --dir --timing", "--yes"},
		{"show --dir " + h.state(), "c1 gone half --dir", "--yes"},
		{"nothing", "", "list"},
		{"gc --dry-run", "--bin-dir --dry-run", "c1"},
		{"forget --dir " + h.state() + " --yes", "c1 gone half --yes", ""},
		{"forget --dir " + h.state() + " c1", "--yes", "gone"},
		{"install --watch", "--conf-dir --cluster-network", "c1"},
	} {
		var out strings.Builder
		nodetest.OK(t, (&tool{out: &out}).run(t.Context(), append([]string{"completion", "words"}, strings.Fields(tt.words)...)))
		got := " " + strings.Join(strings.Fields(out.String()), " ") + " "
		for word := range strings.FieldsSeq(tt.has) {
			if strings.Count(got, " "+word+" ") != 1 {
				t.Errorf("after %q there is no %q:%s", tt.words, word, got)
			}
		}
		for word := range strings.FieldsSeq(tt.lacks) {
			if strings.Contains(got, " "+word+" ") {
				t.Errorf("after %q there is %q:%s", tt.words, word, got)
			}
		}
	}
	for _, words := range []string{"completion", "completion csh", "completion bash x"} {
		var out strings.Builder
		nodetest.Says(t, (&tool{out: &out}).run(t.Context(), strings.Fields(words)), "usage: multinet completion bash|fish|zsh")
	}
}

// The scripts are accepted by their shells, and bash completes with its own.
func TestCompletionOfShells(t *testing.T) {
	t.Parallel()
	for _, shell := range shells() {
		if path, err := exec.LookPath(shell); err == nil {
			if out, err := exec.CommandContext(t.Context(), path, "-n", "-c", completions()[shell]).CombinedOutput(); err != nil {
				t.Errorf("%s: %v %s", shell, err, out)
			}
		}
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	// The program is played by a function.
	script := `multinet() { printf '%s\n' list leftover "show $#"; }
` + completions()["bash"] + `
COMP_WORDS=(multinet -x "a b" l) COMP_CWORD=3
_multinet
echo "${COMPREPLY[@]}"`
	out, err := exec.CommandContext(t.Context(), bash, "-c", script).Output()
	nodetest.OK(t, err)
	nodetest.Equal(t, "completions of l", string(out), "list leftover\n")
}
