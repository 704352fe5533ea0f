//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/conform"
	"github.com/metacni/metacni/delegate/delegatetest"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

var update = flag.Bool("update", false, "rewrite testdata and README.md")

func TestMain(m *testing.M) {
	if slices.Contains(os.Environ(), inHost) || filepath.Base(os.Args[0]) == "conform" {
		main()
	}
	os.Exit(m.Run())
}

// plain are the flags with which a report is the same on every machine.
var plain = []string{"-netns=false", "-kind", "meta", "-conf", "testdata/fake.json"}

func runConform(t *testing.T, args ...string) (status int, stdout, stderr string) {
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
	for _, c := range conform.Checks() {
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
		"a good plugin":           {append(only("version", "add", "undo", "del-error"), "testdata/good"), 0, "4 passed, 0 failed, "},
		"findings that are known": {append(only("version"), "testdata/bad"), 0, "not run  undo "},
		"a program that is none":  {[]string{"-netns=false", "-kind", "META", "true"}, 1, "what: VERSION: stdout \"\" is no JSON document"},
		"a member of a list":      {append(only("add"), "-conf", file(t, `{"name":"pods","plugins":[{"type":"bridge"},{"type":"good","dir":"{dir}","delegate":{"type":"fake"}}]}`), "testdata/good"), 0, "1 passed"},
		"help":                    {[]string{"-h"}, 0, "Usage: conform [flags] PATH"},
		"the checks":              {[]string{"-list"}, 0, "del-again: DEL succeeds once more\n  kind: "},
		"no plugin":               {nil, 2, "want the path of one plugin"},
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
			status, stdout, stderr := runConform(t, tt.args...)
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

// actionCase is a run of the action.
type actionCase struct {
	inputs  []string
	want    int
	summary string // "" where there is none
}

// The script of the action runs conform, with what stands in for the go command.
func TestAction(t *testing.T) {
	t.Parallel()
	some := only("version", "add", "undo")
	_, known, _ := runConform(t, append(slices.Clone(some), "-json", "testdata/bad")...)
	fake := []string{"CONFIGURATION=testdata/fake.json", "KIND=meta"}
	for name, tt := range map[string]actionCase{
		"with configuration":    {append(fake, "PLUGIN=testdata/good"), passed, "### conform good: "},
		"without configuration": {[]string{"PLUGIN=testdata/alone"}, passed, " 0 failed, "},
		"a finding":             {append(fake, "PLUGIN=testdata/bad"), failed, "| undo | "},
		"a known finding":       {append(fake, "PLUGIN=testdata/bad", "BASELINE="+file(t, known)), passed, "| undo | known | "},
		"more flags":            {append(fake, "PLUGIN=testdata/good", "FLAGS=-skip=undo=a reason * $(exit 3)\n\n"+strings.Join(some, "\n")), passed, "a reason \\* $(exit 3)"},
		"a bad flag":            {[]string{"PLUGIN=testdata/good", "KIND=none; exit 0"}, cannot, ""},
		"a plugin like a flag":  {[]string{"PLUGIN=-list"}, cannot, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bin := t.TempDir()
			self, err := os.Executable()
			nodetest.OK(t, err)
			script := fmt.Sprintf("#!/bin/sh\nln -s '%s' \"$GOBIN/conform\"\n", self)
			nodetest.OK(t, os.WriteFile(filepath.Join(bin, "go"), []byte(script), 0o700))
			runAction(t, tt, "PATH="+bin+":"+os.Getenv("PATH"), "CONFORM_FLAGS=-netns=false\n"+strings.Join(some[5:], "\n"))
		})
	}
}

func runAction(t *testing.T, tt actionCase, environ ...string) {
	t.Helper()
	dir := t.TempDir()
	summary, output := filepath.Join(dir, "summary"), filepath.Join(dir, "output")
	script, err := filepath.Abs(action + "run.sh")
	nodetest.OK(t, err)
	cmd := exec.CommandContext(t.Context(), script)
	cmd.Env = append(os.Environ(), "GITHUB_ACTION_PATH="+filepath.Dir(script), "RUNNER_TEMP="+dir, "GITHUB_STEP_SUMMARY="+summary, "GITHUB_OUTPUT="+output)
	cmd.Env = append(cmd.Env, environ...)
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
}

// The plugin gets its files, its environment, and the result of its delegate.
func TestFlagsReachThePlugin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"files/etc/subnet": "in {dir}", "result": `{"cniVersion":"1.1.0","ips":[{"address":"10.1.2.3/24"}]}`,
		"conf": `{"type":"x","file":"{dir}/etc/subnet","master":"eth0","delegate":{"type":"fake","ipam":{"type":"host-local"}}}`,
	} {
		nodetest.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		nodetest.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	p := process{args: []string{
		"-conf", filepath.Join(dir, "conf"), "-files", filepath.Join(dir, "files"), "-fake", "fake=" + filepath.Join(dir, "result"),
		"-idle", "a, b", "-env", "A=1", "-env", "B=2=3", "-link", "up0", "-link", "eth0", "-daemon", "d -x 'a b'", "-kind", "Meta", "true",
	}, environ: []string{"CNI_PATH=/a" + string(filepath.ListSeparator) + "/b"}, stderr: os.Stderr}
	o, err := p.parse()
	nodetest.OK(t, err)
	conf, err := p.config(o)
	nodetest.OK(t, err)
	host := t.TempDir()
	stdin := conf.Stdin(host)
	if got := read(t, filepath.Join(host, "etc/subnet")); got != "in "+host || !strings.Contains(stdin, host+"/etc/subnet") {
		t.Errorf("configuration %s, file %q", stdin, got)
	}
	nodetest.Equal(t, "kind", conf.Kind, "meta")
	nodetest.Equal(t, "delegates, idle, environment, links, daemon, directories",
		[][]string{conf.Delegates, conf.Idle, o.env, conf.Links, o.daemon, o.dirs},
		[][]string{{"fake"}, {"a", "b"}, {"A=1", "B=2=3"}, {"up0", "eth0"}, {"d", "-x", "a b"}, {filepath.Dir(o.path), "/a", "/b"}})
	result, err := conf.Fakes["fake"](t.Context(), delegatetest.Invocation{Command: "ADD", Stdin: []byte(`{"cniVersion":"1.0.0"}`)})
	if err != nil || !strings.Contains(string(result), "10.1.2.3/24") {
		t.Errorf("result %s: %v", result, err)
	}
}

// Only an object whose type names a plugin counts as a delegate.
func TestDelegatesAndLinksAreFoundInTheConfiguration(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		conf             string
		delegates, links []string
	}{
		"IPAM":                     {`{"type":"ptp","ipam":{"type":"host-local","ranges":[[{"subnet":"10.0.0.0/8"}]]}}`, []string{"host-local"}, nil},
		"the plugin itself":        {`{"type":"ptp","ipam":{"type":"self","delegate":{"type":"other"}}}`, []string{"other"}, nil},
		"a policy":                 {`{"type":"ptp","policy":{"type":"k8s"},"ipam":{"type":"host-local"}}`, []string{"host-local"}, nil},
		"a plugin elsewhere":       {`{"type":"self","then":{"type":"good"},"else":[{"type":"README.md"},{"type":"../good"}]}`, []string{"good"}, nil},
		"a delegate's delegate":    {`{"type":"self","delegate":{"type":"bridge","master":"eth9","ipam":{"type":"host-local"}}}`, []string{"bridge"}, nil},
		"networks":                 {`{"delegates":[{"type":"b"},{"name":"n","plugins":[{"type":"c"},{"type":"a"}]},{"type":"b"}]}`, []string{"a", "b", "c"}, nil},
		"networks at another key":  {`{"choices":[{"name":"n","plugins":[{"type":"a"}]}],"plugins":{"type":"b"}}`, []string{"a", "b"}, nil},
		"what a runtime adds":      {`{"prevResult":{"ipam":{"type":"a"}},"runtimeConfig":{"delegate":{"type":"b"}},"args":{"delegate":{"type":"c"}}}`, nil, nil},
		"links":                    {`{"master":"eth1","a":{"device":"eth2","parent":"eth3"},"link":"eth4","links":[{"name":"eth5"},{"name":"eth1"}]}`, nil, []string{"eth2", "eth3", "eth4", "eth5", "eth1"}},
		"no names of links":        {`{"master":"","device":"/dev/tap","link":"a name","parent":"longer-than-a-name","links":[{"name":7},"x"],"other":"eth0"}`, nil, nil},
		"no object":                {`[{"ipam":{"type":"a"}}]`, nil, nil},
		"types that are no string": {`{"ipam":{"type":7},"delegate":{"type":""},"delegates":[{"type":"."}]}`, nil, nil},
	} {
		got := scan(json.RawMessage(tt.conf), "self", []string{"", "testdata"})
		slices.Sort(got.links)
		slices.Sort(tt.links)
		nodetest.Equal(t, name+": delegates and links", [][]string{got.delegates, got.links}, [][]string{tt.delegates, tt.links})
	}
}

func TestAMemberOfANetworkConfigurationList(t *testing.T) {
	t.Parallel()
	conf := file(t, `{"name":"pods","plugins":[{"type":"ptp","ipam":{"type":"host-local"}},{"type":"portmap"}]}`)
	for typ, want := range map[string]string{
		"portmap":    `{"name":"pods","type":"portmap"}`,
		"host-local": `{"ipam":{"type":"host-local"},"name":"pods","type":"ptp"}`,
	} {
		object, err := (&options{path: "/opt/cni/bin/" + typ, conf: conf}).object()
		nodetest.OK(t, err)
		nodetest.Equal(t, typ, string(object), want)
	}
}

func TestWordsOfACommand(t *testing.T) {
	t.Parallel()
	for command, want := range map[string][]string{
		"a":                {"a"},
		" a  b\tc ":        {"a", "b", "c"},
		`a 'b "c' "d 'e"`:  {"a", `b "c`, `d 'e`},
		`a\ b "c\"d" '\'`:  {"a b", `c"d`, `\`},
		`--x="a b"c '' ""`: {"--x=a bc", "", ""},
		"":                 nil,
		"a 'b":             nil,
		`a\`:               nil,
	} {
		got, err := words(command)
		nodetest.Equal(t, command, got, want)
		nodetest.Equal(t, command+": error", err != nil, want == nil)
	}
}

func TestFieldsAreToldAsFlags(t *testing.T) {
	t.Parallel()
	nodetest.Equal(t, "text",
		flags("needs Config.NetNS, Links or Binary.Daemon (Stdin); CNI_NETNS, NetNSes and Other stay"),
		"needs -netns, -link or -daemon (-conf, -files); CNI_NETNS, NetNSes and Other stay")
}

// What is missing for an ADD is not a finding, and no success.
func TestAnADDThatWasNotRunMeansThatTheChecksCouldNotBeMade(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		version error
		add     string
		skip    string
		lacks   bool
		detail  string
	}{
		"not run":         {nil, "ADD fails with (Links) Kind: a configuration (Stdin)", "", true, "ADD fails with (-link) Kind: a configuration (-conf, -files)"},
		"passed":          {nil, "", "", false, ""},
		"not asked for":   {nil, "a (Kind) that is not mine", "a (Kind) that is not mine", false, "a (Kind) that is not mine"},
		"without version": {errors.New("no JSON"), "the check version has failed", "", false, "the check version has failed"},
	} {
		r := &report{skip: map[string]string{"add": tt.skip}}
		r.add(conform.Finding{Check: conform.Check{Name: "version"}, Err: tt.version}, 0)
		r.add(conform.Finding{Check: conform.Check{Name: "add"}, NotRun: tt.add}, 0)
		nodetest.Equal(t, name, r.lacksADD(), tt.lacks)
		nodetest.Equal(t, name+": detail", r.check("add").Detail, tt.detail)
	}
}

// A bad plugin fails some checks. People's programs read the reports: their form stays.
func TestReports(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	junit, markdown := filepath.Join(dir, "junit.xml"), filepath.Join(dir, "report.md")
	args := append(slices.Clone(plain), "-junit", junit, "-markdown", markdown, "-skip", "code=the code is ours", "testdata/bad")
	status, text, stderr := runConform(t, args...)
	nodetest.Equal(t, "status", status, failed)
	nodetest.Equal(t, "stderr", stderr, "")
	status, js, _ := runConform(t, append(only("version", "add", "error", "undo"), "-json", "testdata/bad")...)
	nodetest.Equal(t, "status with -json", status, failed)
	plugin, err := filepath.Abs("testdata/bad")
	nodetest.OK(t, err)
	same := func(text string) string {
		return regexp.MustCompile(`time="[0-9.]+"`).ReplaceAllString(strings.ReplaceAll(text, plugin, "/opt/cni/bin/bad"), `time="0.001"`)
	}
	checkREADME(t, same(text))
	golden(t, "testdata/bad.golden.txt", same(text))
	golden(t, "testdata/bad.golden.json", same(js))
	golden(t, "testdata/bad.golden.xml", same(read(t, junit)))
	golden(t, "testdata/bad.golden.md", same(read(t, markdown)))
	if failures := strings.Count(read(t, junit), "<failure "); !strings.Contains(text, fmt.Sprintf(" %d failed, ", failures)) {
		t.Errorf("the JUnit file has %d failures, and the text differs:\n%s", failures, text)
	}
}

func TestListAsJSON(t *testing.T) {
	t.Parallel()
	_, stdout, _ := runConform(t, "-list", "-json")
	var list []check
	if err := json.Unmarshal([]byte(stdout), &list); err != nil || len(list) != len(conform.Checks()) || list[0].Result != "" {
		t.Errorf("list %v: %v", list, err)
	}
	_, stdout, _ = runConform(t, "-list", "-json", "-kind", "chained")
	nodetest.OK(t, json.Unmarshal([]byte(stdout), &list))
	var chained []string
	for _, c := range list {
		chained = append(chained, c.Name)
	}
	for _, c := range conform.Checks() {
		nodetest.Equal(t, "is for chained plugins: "+c.Name, slices.Contains(chained, c.Name), c.Kinds == nil || slices.Contains(c.Kinds, "chained"))
	}
}

// With a baseline only new findings fail, and a finding that is gone is named.
func TestBaseline(t *testing.T) {
	t.Parallel()
	_, js, _ := runConform(t, append([]string{"-json"}, append(only("version", "add", "undo", "error"), "testdata/bad")...)...)
	var all report
	nodetest.OK(t, json.Unmarshal([]byte(js), &all))
	known := all.with(isFailed)
	if len(known) < 2 {
		t.Fatalf("want two findings to know: %s", js)
	}
	baseline := file(t, js)

	status, text, _ := runConform(t, append(only("version", "add", "undo", "error"), "-baseline", baseline, "testdata/bad")...)
	nodetest.Equal(t, "status with known findings", status, passed)
	if want := fmt.Sprintf(" 0 failed, %d known, ", len(known)); !strings.Contains(text, want) || !strings.Contains(text, "known    undo") {
		t.Errorf("want %q in:\n%s", want, text)
	}

	// A report made with a baseline is a baseline as well.
	status, js, _ = runConform(t, append([]string{"-json"}, append(only("version", "add", "undo", "error"), "-baseline", baseline, "testdata/bad")...)...)
	nodetest.Equal(t, "status with -json", status, passed)
	again, err := readBaseline(file(t, js))
	nodetest.OK(t, err)
	nodetest.Equal(t, "known findings of a report with known findings", len(again), len(known))

	all.Checks = slices.DeleteFunc(all.Checks, func(c check) bool { return c.Name == "undo" })
	less, err := json.Marshal(all)
	nodetest.OK(t, err)
	status, text, _ = runConform(t, append(only("version", "add", "undo", "error"), "-baseline", file(t, string(less)), "testdata/bad")...)
	if nodetest.Equal(t, "status with a new finding", status, failed); !strings.Contains(text, "failed   undo") {
		t.Errorf("undo is not new:\n%s", text)
	}

	status, text, _ = runConform(t, append(only("version", "add", "undo", "error"), "-baseline", baseline, "testdata/good")...)
	if nodetest.Equal(t, "status without findings", status, passed); !strings.Contains(text, `The finding "undo" of the baseline is gone: remove it from `+baseline) {
		t.Errorf("nothing is gone:\n%s", text)
	}
	_, text, _ = runConform(t, append(only("version"), "-baseline", baseline, "testdata/good")...)
	if strings.Contains(text, "of the baseline is gone") {
		t.Errorf("a check that was not run is not gone:\n%s", text)
	}
}

// Nothing that a plugin prints reaches the reader raw, and no value of its environment.
func TestHostilePlugin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	junit, markdown := filepath.Join(dir, "junit.xml"), filepath.Join(dir, "report.md")
	args := append(slices.Clone(plain), "-env", "TOKEN=correct horse \"battery\"", "-junit", junit, "-markdown", markdown, "testdata/hostile")
	outputs := make(map[string]string)
	for name, args := range map[string][]string{"text": args, "json": append([]string{"-json"}, args...)} {
		var stdout, stderr bytes.Buffer
		status := process{args, append(os.Environ(), "SECRET=of this process"), nil, &stdout, &stderr}.run(t.Context())
		nodetest.Equal(t, name+": status", status, failed)
		outputs[name], outputs[name+": stderr"] = stdout.String(), stderr.String()
	}
	outputs["junit"], outputs["markdown"] = read(t, junit), read(t, markdown)
	for name, text := range outputs {
		if !utf8.ValidString(text) {
			t.Errorf("%s is no UTF-8", name)
		}
		if i := strings.IndexFunc(text, func(c rune) bool { return c != '\n' && c != '\t' && clean(string(c)) != string(c) }); i >= 0 {
			t.Errorf("%s has control characters: %q", name, text[i:min(len(text), i+80)])
		}
		for _, secret := range []string{"horse", "of this process"} {
			if i := strings.Index(text, secret); i >= 0 {
				t.Errorf("%s has a secret: %q", name, text[max(0, i-80):i+10])
			}
		}
		if len(text) > 200_000 {
			t.Errorf("%s has %d bytes", name, len(text))
		}
	}
	if !strings.Contains(outputs["text"], "[value of TOKEN]") || !strings.Contains(outputs["text"], `\x1b[2J`) {
		t.Errorf("the finding is not shown:\n%s", outputs["text"])
	}
	if strings.Contains(outputs["markdown"], "<img") || strings.Contains(outputs["markdown"], "@all") {
		t.Errorf("markup reaches the reader:\n%s", outputs["markdown"])
	}
	for line := range strings.Lines(outputs["markdown"]) {
		if cells := strings.Count(strings.ReplaceAll(line, `\|`, ""), "|"); strings.HasPrefix(line, "|") && cells != 5 && cells != 4 {
			t.Errorf("a line of the table has %d bars: %s", cells, line)
		}
	}
	nodetest.OK(t, xml.Unmarshal([]byte(outputs["junit"]), new(struct{})))
}

// checkREADME checks that README.md shows what is really printed, and each check.
func checkREADME(t *testing.T, stdout string) {
	t.Helper()
	readme := read(t, "README.md")
	put := func(name, text string) {
		begin, end := "<!-- begin "+name+" -->\n", "<!-- end "+name+" -->"
		before, rest, found := strings.Cut(readme, begin)
		_, after, ended := strings.Cut(rest, end)
		if !found || !ended {
			t.Fatalf("README.md lacks %q or %q", begin, end)
		}
		readme = before + begin + text + end + after
	}

	text := strings.Split(stdout, "\n\n") // kind, checks, findings, ..., counts
	var checks []string
	for _, result := range []string{isPassed, isFailed} {
		lines := slices.DeleteFunc(strings.Split(text[1], "\n"), func(line string) bool { return !strings.HasPrefix(line, result) })
		checks = append(append(checks, lines[:min(2, len(lines))]...), "...")
	}
	shown := strings.Join([]string{"$ conform -conf plugin.json /opt/cni/bin/bad\n" + text[0], strings.Join(checks, "\n"), text[2], "...", strings.TrimSpace(text[len(text)-1])}, "\n\n")
	put("output", "\n    "+strings.ReplaceAll(shown, "\n", "\n    ")+"\n\n")

	var table, kindTable strings.Builder
	table.WriteString("\n| check | a plugin passes when | where it is written | why it matters on a node |\n|---|---|---|---|\n")
	for _, c := range conform.Checks() {
		fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", c.Name, c.Duty, c.Where, c.Why)
	}
	put("checks", table.String()+"\n")
	kindTable.WriteString("\n| kind | checks |\n|---|---|\n")
	row := func(kind string, in func(conform.Check) bool) {
		var names []string
		for _, c := range conform.Checks() {
			if in(c) {
				names = append(names, c.Name)
			}
		}
		fmt.Fprintf(&kindTable, "| %s | %s |\n", kind, strings.Join(names, ", "))
	}
	row("every", func(c conform.Check) bool { return c.Kinds == nil && !c.Delegates && !c.Strict })
	row("every, with delegates", func(c conform.Check) bool { return c.Kinds == nil && c.Delegates && !c.Strict })
	for _, kind := range kinds() {
		row(kind, func(c conform.Check) bool { return slices.Contains(c.Kinds, kind) && !c.Strict })
	}
	row("with -strict", func(c conform.Check) bool { return c.Strict })
	put("kinds", kindTable.String()+"\n")
	readme = regexp.MustCompile(`(?m)[ \t]+$`).ReplaceAllString(readme, "")
	golden(t, "README.md", readme)
}

// spy returns a plugin that notes its user namespace in a file, and where.
func spy(t *testing.T) (plugin, seen string) {
	t.Helper()
	dir := t.TempDir()
	plugin, seen = filepath.Join(dir, "spy"), filepath.Join(dir, "seen")
	nodetest.OK(t, os.WriteFile(plugin, fmt.Appendf(nil, "#!/bin/sh\n{ id -u; readlink /proc/self/ns/user; } >%s\n", seen), 0o700))
	return plugin, seen
}

func userNS(t *testing.T) string {
	t.Helper()
	ns, err := os.Readlink("/proc/self/ns/user")
	nodetest.OK(t, err)
	return ns
}

// Without namespaces the plugin runs here, and whoever asked for them is told why.
func TestWithoutNamespaces(t *testing.T) {
	t.Parallel()
	plugin, seen := spy(t)
	status, _, stderr := runConform(t, "-netns=false", plugin)
	nodetest.Equal(t, "status", status, failed)
	nodetest.Equal(t, "stderr", stderr, "")
	nodetest.Equal(t, "user namespace", strings.Fields(read(t, seen))[1], userNS(t))

	if os.Geteuid() == 0 {
		return // root can make namespaces
	}
	p := process{[]string{plugin}, append(os.Environ(), inHost), nil, new(bytes.Buffer), new(bytes.Buffer)}
	nodetest.Equal(t, "status in the namespaces of nobody", p.run(t.Context()), failed)
	if said := fmt.Sprint(p.stderr); !strings.HasPrefix(said, "conform: goes on without real containers: ") || strings.Count(said, "\n") != 1 {
		t.Errorf("said %q", said)
	}
	p.args = []string{"-netns", plugin}
	nodetest.Equal(t, "status with -netns", p.run(t.Context()), cannot)
}
