package delegatetest_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/version"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/metacni/metacni/delegate/delegatetest"
)

var _ delegatetest.TB[*testing.T] = (*testing.T)(nil)

var metaConfig = delegatetest.Config{Stdin: metaStdin, Delegates: []string{"one", "two"}}

// A plugin that is right passes.
func TestConform(t *testing.T) {
	t.Parallel()
	delegatetest.Conform(t, delegatetest.Program{New: newMeta()}, metaConfig)
}

// A plugin that forgets to undo is told so.
func ExampleConform() {
	// In a test, t is the first argument, and each check a test below it.
	t := newRecorder(context.Background())
	plugin := delegatetest.Program{New: newMeta("undoes only those before")}
	delegatetest.Conform(t, plugin, delegatetest.Config{
		Stdin: func(dir string) string {
			return fmt.Sprintf(`{"type":"meta","dir":%q,"delegates":[{"type":"bridge"},{"type":"tuning"}]}`, dir)
		},
		Delegates: []string{"bridge", "tuning"},
	})
	fmt.Println(strings.Join(*t.failed, "\n"))
	// Output:
	// undo
	// undo-killed
	// undo-garbage
	// undo-silence
	// undo-two-documents
}

// Each flaw is found by the checks it belongs to, and by no other.
func TestWrongPlugins(t *testing.T) {
	t.Parallel()
	found := make(map[string]bool)
	for _, flaw := range slices.Sorted(maps.Keys(wrong)) {
		t.Run(flaw, func(t *testing.T) {
			r := newRecorder(t.Context())
			delegatetest.Conform(r, delegatetest.Program{New: newMeta(flaw)}, metaConfig)
			if diff := cmp.Diff(wrong[flaw], *r.failed, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("failed (-want +got):\n%s%s", diff, strings.Join(*r.said, "\n"))
			}
			if diff := cmp.Diff([]string{"stderr"}, *r.skipped); diff != "" {
				t.Errorf("skipped %q", *r.skipped)
			}
			for _, name := range *r.failed {
				found[name] = true
			}
		})
	}
	// These are about what RunPlugin does for a Program.
	for _, name := range []string{"version", "add", "stderr", "error", "error-version"} {
		found[name] = true
	}
	if diff := cmp.Diff(slices.Sorted(slices.Values(names(t))), slices.Sorted(maps.Keys(found))); diff != "" {
		t.Errorf("checks that nothing fails (-all +failed):\n%s", diff)
	}
}

// names are those of all checks, which the comment of Conform has as well.
func names(t *testing.T) []string {
	t.Helper()
	r := newRecorder(t.Context())
	var all []string
	delegatetest.Conform(lister{r, &all}, delegatetest.Program{New: newMeta()}, metaConfig)
	return all
}

type lister struct {
	*recorder
	names *[]string
}

func (l lister) Run(name string, _ func(lister)) bool {
	*l.names = append(*l.names, name)
	return true
}

func TestConformIsDocumented(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("conform.go")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, match := range regexp.MustCompile(`(?m)^//\t([a-z-]+)  +`).FindAllStringSubmatch(string(source), -1) {
		documented = append(documented, match[1])
	}
	if diff := cmp.Diff(names(t), documented); diff != "" {
		t.Errorf("checks (-there +documented):\n%s", diff)
	}
}

// The delegates that a Config names must run.
func TestConformAdd(t *testing.T) {
	t.Parallel()
	conf := metaConfig
	conf.Delegates = []string{"one", "two", "three"}
	r := newRecorder(t.Context())
	delegatetest.Conform(r, delegatetest.Program{New: newMeta()}, conf)
	if diff := cmp.Diff([]string{"add", "check", "gc", "gc-error", "status"}, *r.failed); diff != "" {
		t.Errorf("failed (-want +got):\n%s%s", diff, strings.Join(*r.said, "\n"))
	}
}

// Checks of commands that no version has are skipped, and those of the Config.
func TestConformSkips(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name            string
		versions        []string
		skip            map[string]string
		failed, skipped []string
	}{
		{"old", []string{"0.3.1"}, nil, nil, []string{"stderr", "check", "check-error", "gc", "gc-error", "gc-valid", "status", "status-error"}},
		{"older than GC", []string{"0.4.0", "1.0.0"}, nil, nil, []string{"stderr", "gc", "gc-error", "gc-valid", "status", "status-error"}},
		{"not to check", []string{"1.1.0"}, map[string]string{"gc-valid": "nobody uses it", "code": "later"}, nil, []string{"stderr", "code", "gc-valid"}},
		{"no such check", []string{"1.1.0"}, map[string]string{"gcvalid": "?"}, []string{""}, []string{"stderr"}},
		{"versions of the future", []string{"7.0.0"}, nil, []string{"version"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			conf := metaConfig
			conf.Skip = tt.skip
			r := newRecorder(t.Context())
			delegatetest.Conform(r, delegatetest.Program{New: newMeta(), Versions: version.PluginSupports(tt.versions...)}, conf)
			if diff := cmp.Diff(tt.failed, *r.failed, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("failed (-want +got):\n%s%s", diff, strings.Join(*r.said, "\n"))
			}
			if diff := cmp.Diff(tt.skipped, *r.skipped, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("skipped (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConformConfig(t *testing.T) {
	t.Parallel()
	for name, conf := range map[string]delegatetest.Config{
		"a Config needs":    {Delegates: []string{"one"}},
		"Delegates":         {Stdin: metaStdin},
		"not a JSON object": {Stdin: func(string) string { return "null" }, Delegates: []string{"one"}},
	} {
		r := newRecorder(t.Context())
		delegatetest.Conform(r, delegatetest.Program{New: newMeta()}, conf)
		if len(*r.said) != 1 || !strings.Contains((*r.said)[0], name) {
			t.Errorf("said %q, want %q", *r.said, name)
		}
	}
}
