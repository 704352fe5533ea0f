//go:build unix

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

const action = "../../../../.github/actions/conform/"

// Inputs are passed in the environment: in the script, they could be commands.
func TestActionPassesItsInputsInTheEnvironment(t *testing.T) {
	t.Parallel()
	text := read(t, action+"action.yml")
	_, inputs, _ := strings.Cut(text, "\ninputs:\n")
	inputs, _, _ = strings.Cut(inputs, "\noutputs:\n")
	_, runs, _ := strings.Cut(text, "\nruns:\n")
	script := read(t, action+"run.sh")
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^  ([a-z]+):$`).FindAllStringSubmatch(inputs, -1) {
		names = append(names, m[1])
		variable := "CONFORM_" + strings.ToUpper(m[1])
		if !strings.Contains(runs, "\n        "+variable+": ${{ inputs."+m[1]+" }}\n") || !strings.Contains(script, variable) {
			t.Errorf("the input %s does not reach the script as %s", m[1], variable)
		}
	}
	nodetest.Equal(t, "inputs", names, []string{"plugin", "configuration", "kind", "baseline", "flags"})
	nodetest.Equal(t, "expressions in runs", strings.Count(runs, "${{"), len(names))
	nodetest.Equal(t, "expressions in the script", strings.Count(script, "${{"), 0)
}

func TestAction(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("the action needs Go: ", err)
	}
	_, known, _ := conform(t, append(slices.Clone(plain), "-json", "testdata/bad")...)
	baseline := file(t, known)
	for name, tt := range map[string]struct {
		inputs  []string
		want    int
		summary string // "" where there is none
	}{
		"with configuration":    {[]string{"PLUGIN=testdata/good", "CONFIGURATION=testdata/fake.json", "KIND=meta"}, passed, "### conform good: "},
		"without configuration": {[]string{"PLUGIN=testdata/alone"}, passed, " 0 failed, "},
		"a finding":             {[]string{"PLUGIN=testdata/bad", "CONFIGURATION=testdata/fake.json", "KIND=meta"}, failed, "| undo | "},
		"a known finding":       {[]string{"PLUGIN=testdata/bad", "CONFIGURATION=testdata/fake.json", "KIND=meta", "BASELINE=" + baseline}, passed, "| undo | known | "},
		"more flags":            {[]string{"PLUGIN=testdata/good", "CONFIGURATION=testdata/fake.json", "KIND=meta", "FLAGS=-skip=undo=a reason * $(exit 3)\n\n-timeout=20s"}, passed, "a reason \\* $(exit 3)"},
		"a bad flag":            {[]string{"PLUGIN=testdata/good", "KIND=none; exit 0"}, cannot, ""},
		"a plugin like a flag":  {[]string{"PLUGIN=-list"}, cannot, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			summary, output := filepath.Join(dir, "summary"), filepath.Join(dir, "output")
			script, err := filepath.Abs(action + "run.sh")
			nodetest.OK(t, err)
			cmd := exec.CommandContext(t.Context(), script)
			cmd.Env = append(os.Environ(), "GITHUB_ACTION_PATH="+filepath.Dir(script), "RUNNER_TEMP="+dir, "GITHUB_STEP_SUMMARY="+summary, "GITHUB_OUTPUT="+output, "CONFORM_FLAGS=-netns=false")
			for _, input := range tt.inputs {
				cmd.Env = append(cmd.Env, "CONFORM_"+input)
			}
			out, err := cmd.CombinedOutput()
			if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if got := cmd.ProcessState.ExitCode(); got != tt.want {
				t.Fatalf("status %d, want %d:\n%s", got, tt.want, out)
			}
			if tt.summary == "" {
				if _, err := os.Stat(summary); err == nil {
					t.Error("there is a summary")
				}
				return
			}
			if text := read(t, summary); !strings.Contains(text, tt.summary) {
				t.Errorf("the summary lacks %q:\n%s", tt.summary, text)
			}
			if junit, ok := strings.CutPrefix(strings.TrimSpace(read(t, output)), "junit="); !ok || !strings.Contains(read(t, junit), "<testsuite ") {
				t.Errorf("there is no JUnit file %q", junit)
			}
		})
	}
}
