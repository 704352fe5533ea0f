//go:build e2e && linux

package api

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/metacni/metacni/delegate/conform"
)

// The snippets of the page do what their tests ask.
func TestSnippetsWork(t *testing.T) {
	t.Parallel()
	dir := newModule(t)
	copySnippets(t, dir)
	run(t, dir, "go", "test", "-mod=mod", "./...")
}

// The plugin of README.md is whole: in a module of its own it builds, and it does
// what the CNI specification asks of a plugin that delegates.
func TestPluginOfTheReadmeConforms(t *testing.T) {
	t.Parallel()
	dir := newModule(t)
	copyReadme(t, dir)
	run(t, dir, "go", "build", "-mod=mod", "-buildvcs=false", "-o", "mine", "./readme")
	conform.Test(t, conform.Binary{Path: filepath.Join(dir, "mine"), Env: []string{"PATH=/usr/bin:/bin"}}, conform.Config{
		Stdin: func(dir string) string {
			return fmt.Sprintf(`{"type":"mine","stateDir":%q,"delegates":[{"type":"bridge"},{"name":"storage","plugins":[{"type":"macvlan"},{"type":"tuning"}]}]}`, dir)
		},
		Delegates: []string{"bridge", "macvlan", "tuning"},
	})
}
