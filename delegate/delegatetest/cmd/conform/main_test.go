//go:build unix

package main

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/delegatetest"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

var update = flag.Bool("update", false, "rewrite testdata and README.md")

func TestMain(m *testing.M) {
	if slices.Contains(os.Environ(), inHost) {
		main()
	}
	os.Exit(m.Run())
}

// plain are the flags with which a report is the same on every machine.
var plain = []string{"-netns=false", "-kind", "meta", "-conf", "testdata/fake.json"}

func conform(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = process{args, os.Environ(), nil, &out, &errs}.run(t.Context())
	return status, out.String(), errs.String()
}

// file returns the path of a new file with text.
func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	nodetest.OK(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// read returns the text of a file.
func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	nodetest.OK(t, err)
	return string(text)
}

// golden compares got with a file, or writes it there.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		nodetest.OK(t, os.WriteFile(path, []byte(got), 0o600))
	}
	if diff := cmp.Diff(read(t, path), got); diff != "" {
		t.Errorf("%s is out of date: run go test -update (-want +got):\n%s", path, diff)
	}
}

// only returns the flags that skip all checks but some.
func only(names ...string) []string {
	args := slices.Clone(plain)
	for _, c := range delegatetest.Checks() {
		if !slices.Contains(names, c.Name) {
			args = append(args, "-skip", c.Name+"=not asked for")
		}
	}
	return args
}

func TestExitStatus(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args []string
		want int
		says string // on stdout of 0 and 1, on stderr of 2
	}{
		"a good plugin":           {append(slices.Clip(plain), "testdata/good"), 0, "passed, 0 failed, "},
		"findings that are known": {append(only("version"), "testdata/bad"), 0, "not run  undo "},
		"a program that is none":  {[]string{"-netns=false", "-kind", "META", "true"}, 1, "what: VERSION: stdout \"\" is no JSON document"},
		"a member of a list":      {append(only("add"), "-conf", file(t, `{"name":"pods","plugins":[{"type":"bridge"},{"type":"good","dir":"{dir}","delegate":{"type":"fake"}}]}`), "testdata/good"), 0, "1 passed"},
		"help":                    {[]string{"-h"}, 0, "Usage: conform [flags] PATH"},
		"the checks":              {[]string{"-list"}, 0, "del-again: DEL succeeds once more\n  kind: "},
		"no plugin":               {nil, 2, "want the path of one plugin"},
		"two plugins":             {[]string{"testdata/good", "testdata/bad"}, 2, "want the path of one plugin"},
		"no such plugin":          {[]string{"testdata/none"}, 2, "testdata/none"},
		"no such flag":            {[]string{"-x", "testdata/good"}, 2, "conform: flag provided but not defined: -x: see conform -h\n"},
		"no such kind":            {[]string{"-kind", "thick", "testdata/good"}, 2, "want one of meta, main, chained, ipam, shim"},
		"no such check":           {[]string{"-skip", "undone=known", "testdata/good"}, 2, `there is no check "undone"`},
		"no reason":               {[]string{"-skip", "undo", "testdata/good"}, 2, "want NAME=VALUE"},
		"no such configuration":   {[]string{"-conf", "testdata/none", "testdata/good"}, 2, "testdata/none"},
		"no JSON":                 {[]string{"-conf", "testdata/good", "testdata/good"}, 2, "testdata/good is not a JSON object"},
		"a list without the type": {[]string{"-conf", file(t, `{"plugins":[{"type":"bridge"}]}`), "testdata/good"}, 2, `without a plugin of type "good"`},
		"no such result":          {[]string{"-fake", "fake=testdata/none", "testdata/good"}, 2, "testdata/none"},
		"no result":               {[]string{"-fake", "fake=testdata/good", "testdata/good"}, 2, "is not a CNI result"},
		"a configuration":         {[]string{"-fake", "fake=testdata/fake.json", "testdata/good"}, 2, "testdata/fake.json is not a CNI result: it is a configuration"},
		"a directory":             {[]string{"."}, 2, "is a directory"},
		"a result of no delegate": {[]string{"-fake", "fake=" + file(t, `{"cniVersion":"1.0.0"}`), "testdata/good"}, 2, `the fake "fake" is neither in -delegates nor in -idle`},
		"no such files":           {[]string{"-files", "testdata/none", "testdata/good"}, 2, "testdata/none"},
		"no name of a link":       {[]string{"-link", "a name", "testdata/good"}, 2, "no interface can have this name"},
		"no netns or perhaps":     {[]string{"-netns=perhaps", "testdata/good"}, 2, "perhaps"},
		"no command of a daemon":  {[]string{"-daemon", "a 'b", "testdata/good"}, 2, "a quote is not closed"},
		"no such baseline":        {[]string{"-baseline", "testdata/none", "testdata/good"}, 2, "testdata/none"},
		"no baseline":             {[]string{"-baseline", "testdata/fake.json", "testdata/good"}, 2, "testdata/fake.json is not a report of conform -json"},
		"no place for a report":   {append(only("version"), "-junit", "testdata/none/junit.xml", "testdata/good"), 2, "testdata/none/junit.xml"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, stdout, stderr := conform(t, tt.args...)
			said := stdout
			if tt.want == cannot {
				said = stderr
			}
			if status != tt.want || !strings.Contains(said, tt.says) {
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
	status := process{[]string{"testdata/good"}, nil, nil, &stderr, &stderr}.run(ctx)
	if status != cannot || stderr.String() != "conform: interrupted\n" {
		t.Errorf("status %d, said %q", status, stderr.String())
	}
}

// What is missing for an ADD is not a finding, and no success.
// A bad plugin fails some checks. People's programs read the reports: their form stays.
// With a baseline only new findings fail, and a finding that is gone is named.
// A terminal is a buffer that says it is one.
// Nothing that a plugin prints reaches the reader raw, and no value of its environment.
// The plugin gets its files, its environment, and the result of its delegate.
// Only what is a plugin counts as a delegate.
// checkREADME checks that README.md shows what is really printed, and each check.
