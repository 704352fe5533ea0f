package api

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
)

func TestMain(m *testing.M) {
	delegatetest.Main()
	os.Exit(m.Run())
}

// The plugin of README.md is whole: in a module of its own it builds, and it does
// what the CNI specification asks of a plugin that delegates.
func TestPluginOfTheReadmeConforms(t *testing.T) {
	t.Parallel()
	code := submatches(content(t, "README.md"), "(?s)```go\n(package main\n.*?)```")
	if len(code) != 1 {
		t.Fatalf("README.md has %d programs", len(code))
	}
	dir := newModule(t, "example.com/mine")
	nodetest.OK(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(code[0]), 0o600))
	run(t, dir, "go", "build", "-mod=mod", "-buildvcs=false", "-o", "mine", ".")
	delegatetest.Conform(t, delegatetest.Binary{Path: filepath.Join(dir, "mine"), Env: []string{"PATH=/usr/bin:/bin"}}, delegatetest.Config{
		Stdin: func(dir string) string {
			return fmt.Sprintf(`{"type":"mine","stateDir":%q,"delegates":[{"type":"bridge"},{"name":"storage","plugins":[{"type":"macvlan"},{"type":"tuning"}]}]}`, dir)
		},
		Delegates: []string{"bridge", "macvlan", "tuning"},
	})
}

// Links of documents lead to files of the repository.
func TestDocumentsLinkToFilesThatExist(t *testing.T) {
	t.Parallel()
	for _, page := range files(t) {
		if filepath.Ext(page) != ".md" {
			continue
		}
		text := regexp.MustCompile("(?s)\n```.*?\n```|`[^`\n]*`").ReplaceAllString(content(t, page), "")
		for _, link := range submatches(text, `\]\(([^)#:]+)[^):]*\)`) {
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(page), link)); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
}

// The image in the manifests' page is that of the last release.
func TestImageOfTheLastRelease(t *testing.T) {
	t.Parallel()
	released := submatches(content(t, "CHANGELOG.md"), `(?m)^## \[([0-9.]+)\]`)
	for _, tag := range submatches(content(t, "examples/multinetd/deploy/README.md"), `newTag: v([0-9.]+)`) {
		if len(released) == 0 || tag != released[0] {
			t.Errorf("the tag is v%s, released are %q", tag, released)
		}
	}
}

// Examples/README.md lists every example.
func TestExamplesAreListed(t *testing.T) {
	t.Parallel()
	page := content(t, "examples/README.md")
	for _, main := range glob(t, "examples/*/main.go") {
		name := filepath.Base(filepath.Dir(main))
		nodetest.Equal(t, fmt.Sprintf("examples/README.md lists %s", name), strings.Count(page, "\n| ["+name+"]("+name+") |"), 1)
	}
}

// README.md says of the reference plugins what the page of the conformance suite says.
func TestFindingsInReferencePlugins(t *testing.T) {
	t.Parallel()
	const count = `fail\s(?:the same )?(\d+ of \d+) checks`
	want := submatches(content(t, "delegate/delegatetest/cmd/conform/README.md"), count)
	if got := submatches(content(t, "README.md"), count); len(want) != 1 || !slices.Equal(got, want) {
		t.Errorf("README.md says %q, the suite's page %q", got, want)
	}
}
