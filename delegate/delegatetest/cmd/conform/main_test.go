//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/delegatetest"
)

var update = flag.Bool("update", false, "rewrite testdata")

func conform(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(t.Context(), args, os.Environ(), &out, &errs)
	return status, out.String(), errs.String()
}

// only returns the flags that skip all checks but one.
func only(name string) (flags []string) {
	for _, c := range delegatetest.Checks() {
		if c.Name != name {
			flags = append(flags, "-skip", c.Name+"=not asked for")
		}
	}
	return flags
}

func TestExitStatus(t *testing.T) {
	t.Parallel()
	write := func(text string) string {
		path := filepath.Join(t.TempDir(), "conf")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, tt := range map[string]struct {
		args []string
		want int
		says string // on stdout of 0 and 1, on stderr of 2
	}{
		"a good plugin":           {[]string{"-conf", "testdata/fake.json", "testdata/good"}, 0, "34 passed, 0 failed, 0 skipped"},
		"findings that are known": {append(only("version"), "-conf", "testdata/fake.json", "testdata/bad"), 0, "skip  undo "},
		"a program that is none":  {[]string{"true"}, 1, "what: VERSION: stdout \"\" is no JSON document"},
		"no delegates":            {[]string{"-conf", "testdata/fake.json", "-delegates", "-", "testdata/good"}, 1, "the plugin has no delegates"},
		"a member of a list":      {append(only("add"), "-conf", write(`{"name":"pods","plugins":[{"type":"bridge"},{"type":"good","dir":"{dir}","delegate":{"type":"fake"}}]}`), "testdata/good"), 0, "1 passed"},
		"help":                    {[]string{"-h"}, 0, ""},
		"the checks":              {[]string{"-list"}, 0, "del-again: DEL succeeds once more\n  why:  Runtimes repeat"},
		"no plugin":               {nil, 2, "want the path of one plugin"},
		"two plugins":             {[]string{"testdata/good", "testdata/bad"}, 2, "want the path of one plugin"},
		"no such plugin":          {[]string{"testdata/none"}, 2, "testdata/none"},
		"no such flag":            {[]string{"-x", "testdata/good"}, 2, "-x"},
		"no such format":          {[]string{"-o", "xml", "testdata/good"}, 2, `"xml"`},
		"no such check":           {[]string{"-skip", "undone=known", "testdata/good"}, 2, `there is no check "undone"`},
		"no reason":               {[]string{"-skip", "undo", "testdata/good"}, 2, "want NAME=VALUE"},
		"no such configuration":   {[]string{"-conf", "testdata/none", "testdata/good"}, 2, "testdata/none"},
		"no JSON":                 {[]string{"-conf", "testdata/good", "testdata/good"}, 2, "testdata/good is not a JSON object"},
		"a list without the type": {[]string{"-conf", write(`{"plugins":[{"type":"bridge"}]}`), "testdata/good"}, 2, `without a plugin of type "good"`},
		"no such result":          {[]string{"-fake", "fake=testdata/none", "testdata/good"}, 2, "testdata/none"},
		"no result":               {[]string{"-fake", "fake=testdata/good", "testdata/good"}, 2, "is not a CNI result"},
		"a result of no delegate": {[]string{"-fake", "fake=" + write(`{"cniVersion":"1.0.0"}`), "testdata/good"}, 2, `the fake "fake" is neither`},
		"no such files":           {[]string{"-files", "testdata/none", "testdata/good"}, 2, "testdata/none"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, stdout, stderr := conform(t, tt.args...)
			said := stdout
			if tt.want == cannot {
				said, stderr = stderr, stdout
			}
			if status != tt.want || !strings.Contains(said, tt.says) || tt.want == cannot && stderr != "" {
				t.Errorf("status %d, want %d, and %q in:\n%s\nnot said: %s", status, tt.want, tt.says, said, stderr)
			}
		})
	}
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stderr bytes.Buffer
	if status := run(ctx, []string{"testdata/good"}, nil, &stderr, &stderr); status != cannot || stderr.String() != "conform: interrupted\n" {
		t.Errorf("status %d, said %q", status, stderr.String())
	}
}

// Whoever forgets -netns is told.
func TestAddThatFailsWithoutNamespacesIsExplained(t *testing.T) {
	t.Parallel()
	status, _, stderr := conform(t, append(only("add"), "-conf", "testdata/fake.json", "-delegates", "other", "testdata/good")...)
	if status != failed || !strings.Contains(stderr, "needs it") {
		t.Errorf("status %d, said %q", status, stderr)
	}
}

// A bad plugin fails some checks, and README.md shows what is really printed of them.
func TestBadPlugin(t *testing.T) {
	t.Parallel()
	status, stdout, stderr := conform(t, "-conf", "testdata/fake.json", "testdata/bad")
	if status != failed || !strings.HasSuffix(stdout, "\n21 passed, 13 failed, 0 skipped\n") || stderr != "" {
		t.Errorf("status %d:\n%s%s", status, stdout, stderr)
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	const command = "    $ conform -conf testdata/fake.json testdata/bad\n"
	_, block, _ := strings.Cut(string(readme), command)
	block, _, ok := strings.Cut(block, "\n\n")
	if !ok {
		t.Fatalf("README.md does not have %q", command)
	}
	for line := range strings.Lines(block + "\n") {
		if line = strings.TrimPrefix(line, "    "); line != "...\n" && !strings.Contains(stdout, line) {
			t.Errorf("not printed: %s", line)
		}
	}
}

// The form of the JSON stays: people's programs read it.
func TestJSON(t *testing.T) {
	t.Parallel()
	_, stdout, stderr := conform(t, "-o", "json", "-conf", "testdata/fake.json", "-skip", "code=known", "testdata/bad")
	plugin, err := filepath.Abs("testdata/bad")
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Replace(stdout, plugin, "/opt/cni/bin/bad", 1)
	const golden = "testdata/bad.golden.json"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" || stderr != "" {
		t.Errorf("JSON (-want +got):\n%s%s", diff, stderr)
	}

	_, stdout, _ = conform(t, "-list", "-o", "json")
	var list []check
	if err := json.Unmarshal([]byte(stdout), &list); err != nil || len(list) != len(delegatetest.Checks()) || list[0].Result != "" {
		t.Errorf("list %v: %v", list, err)
	}
}

// The plugin gets its files, its environment, and the result of its delegate.
func TestFlagsReachThePlugin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"files/etc/subnet": "in {dir}", "result": `{"cniVersion":"1.1.0","ips":[{"address":"10.1.2.3/24"}]}`,
		"conf": `{"type":"x","file":"{dir}/etc/subnet","delegate":{"type":"fake","ipam":{"type":"host-local"}}}`,
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o, err := parse([]string{
		"-conf", filepath.Join(dir, "conf"), "-files", filepath.Join(dir, "files"), "-fake", "fake=" + filepath.Join(dir, "result"),
		"-idle", "a, b", "-env", "A=1", "-env", "B=2=3", "true",
	}, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	conf, err := o.config()
	if err != nil {
		t.Fatal(err)
	}
	host := t.TempDir()
	stdin := conf.Stdin(host)
	file, err := os.ReadFile(filepath.Join(host, "etc/subnet"))
	if err != nil || string(file) != "in "+host || !strings.Contains(stdin, host+"/etc/subnet") {
		t.Errorf("configuration %s, file %q: %v", stdin, file, err)
	}
	if diff := cmp.Diff([][]string{{"fake"}, {"a", "b"}, {"A=1", "B=2=3"}}, [][]string{conf.Delegates, conf.Idle, o.env}); diff != "" {
		t.Errorf("delegates, idle, environment (-want +got):\n%s", diff)
	}
	result, err := conf.Fakes["fake"](t.Context(), delegatetest.Call{Command: "ADD", Stdin: []byte(`{"cniVersion":"1.0.0"}`)})
	if err != nil || !strings.Contains(string(result), "10.1.2.3/24") {
		t.Errorf("result %s: %v", result, err)
	}
}
