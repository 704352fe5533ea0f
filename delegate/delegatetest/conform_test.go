package delegatetest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

var (
	_ delegatetest.TB = (*testing.T)(nil)
	_ delegatetest.TB = recorder{}
)

var metaConfig = delegatetest.Config{Stdin: metaStdin, Delegates: []string{"one", "two"}, Strict: true}

// check fails t unless exactly these checks find a fault of p.
func check(t *testing.T, p delegatetest.Target, conf delegatetest.Config, failed ...string) recorder {
	t.Helper()
	r := newRecorder(t.Context())
	delegatetest.Conform(r, p, conf)
	nodetest.Equal(t, "failed, of "+r.text(), *r.failed, failed, cmpopts.SortSlices(strings.Compare))
	nodetest.Equal(t, "skipped, which is for what the machine lacks", *r.skipped, nil)
	return r
}

func TestConformPassesARightPlugin(t *testing.T) {
	t.Parallel()
	delegatetest.Conform(t, newMeta().program(), metaConfig)
}

// Conform reports a plugin that forgets to undo.
func ExampleConform() {
	// In a test, t is the first argument, and each check a test below it.
	t := newRecorder(context.Background())
	plugin := newMeta("undoes only those before").program()
	delegatetest.Conform(t, plugin, delegatetest.Config{
		Stdin: func(dir string) string {
			return fmt.Sprintf(`{"type":"meta","dir":%q,"delegates":[{"type":"bridge"},{"type":"tuning"}]}`, dir)
		},
		Delegates: []string{"bridge", "tuning"},
	})
	fmt.Println(strings.Join(*t.failed, "\n"))
	// Output:
	// undo
}

func TestEachFlawFailsItsCheckAndNoOther(t *testing.T) {
	t.Parallel()
	for _, of := range []struct {
		name  string
		conf  delegatetest.Config
		wrong map[string]string
	}{
		{"all delegates", metaConfig, wrong},
		{"the first that works", delegatetest.Config{
			Stdin: metaAlternatives, Delegates: []string{"one"}, Idle: []string{"two", "three"}, Strict: true,
		}, wrongAlternatives},
	} {
		for flaw, fails := range of.wrong {
			t.Run(of.name+"/"+flaw, func(t *testing.T) {
				t.Parallel()
				check(t, newMeta(flaw).program(), of.conf, strings.Fields(fails)...)
			})
		}
	}
}

// names returns the names of all checks.
func names() []string { return namesFor("") }

// namesFor returns the names of the checks for a kind of plugin that delegates.
func namesFor(kind string) []string {
	var all []string
	for _, c := range delegatetest.Checks() {
		if kind == "" || c.Kinds == nil || slices.Contains(c.Kinds, kind) {
			all = append(all, c.Name)
		}
	}
	return all
}

// The comment of Conform lists the checks as the table has them.
func TestConformDocumentsEveryCheck(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("conform.go")
	nodetest.OK(t, err)
	var there, documented []string
	for _, c := range delegatetest.Checks() {
		there = append(there, c.Name+": "+c.Duty)
	}
	for _, match := range regexp.MustCompile(`(?m)^//\t([a-z-]+) {2,}(.*)$`).FindAllStringSubmatch(string(source), -1) {
		documented = append(documented, match[1]+": "+match[2])
	}
	nodetest.Equal(t, "checks", documented, there)
}

// The page of the suite says of each "must" of the specification which checks are about it, or why
// there is none.
func TestPageNamesChecksThatExist(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("cmd/conform/README.md")
	nodetest.OK(t, err)
	_, table, _ := strings.Cut(string(page), "## Each \"must\"")
	rows := regexp.MustCompile(`(?m)^\| [1-5].* \| (.*) \|$`).FindAllStringSubmatch(table, -1)
	if len(rows) < 20 {
		t.Errorf("%d rows", len(rows))
	}
	for _, row := range rows {
		checks, _, _ := strings.Cut(row[1], ":")
		for name := range strings.SplitSeq(checks, ", ") {
			if !strings.HasPrefix(row[1], "not checked, because ") && !slices.Contains(names(), name) {
				t.Errorf("there is no check %q", name)
			}
		}
	}
}

// Each check says why it matters, and names headings that the specification has.
func TestChecksSayWhyAndWhere(t *testing.T) {
	t.Parallel()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/containernetworking/cni").Output()
	nodetest.OK(t, err)
	spec, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "SPEC.md"))
	nodetest.OK(t, err)
	headings := make(map[string]bool)
	for _, match := range regexp.MustCompile("(?m)^#+ (.*)$").FindAllStringSubmatch(string(spec), -1) {
		headings[strings.ReplaceAll(match[1], "`", "")] = true
	}
	for _, c := range delegatetest.Checks() {
		if c.Duty == "" || !strings.HasSuffix(c.Why, ".") {
			t.Errorf("%s: duty %q, why %q", c.Name, c.Duty, c.Why)
		}
		if strings.HasPrefix(c.Where, "metacni, ") {
			continue
		}
		for heading := range strings.SplitSeq(c.Where, " / ") {
			if !headings[heading] {
				t.Errorf("%s: the specification has no heading %q", c.Name, heading)
			}
		}
	}
}

func TestDelegatesThatDoNotRunAreFindings(t *testing.T) {
	t.Parallel()
	conf := metaConfig
	conf.Delegates = []string{"one", "two", "three"}
	check(t, newMeta().program(), conf, "add")
}

func TestChecksThatCannotBeMadeAreListed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name           string
		versions       []string
		skip           map[string]string
		failed, unmade []string
	}{
		{"old", []string{"0.3.1"}, nil, nil, []string{"stderr", "del-gone", "check-fresh", "check", "check-error", "gc-quiet", "gc", "gc-error", "gc-valid", "status-ready", "status", "status-error"}},
		{"older than GC", []string{"0.4.0", "1.0.0"}, nil, nil, []string{"stderr", "del-gone", "gc-quiet", "gc", "gc-error", "gc-valid", "status-ready", "status", "status-error"}},
		{"not to check", []string{"1.1.0"}, map[string]string{"gc-valid": "nobody uses it", "code": "later"}, nil, []string{"stderr", "del-gone", "gc-valid", "code"}},
		{"no such check", []string{"1.1.0"}, map[string]string{"gcvalid": "?"}, []string{""}, nil},
		{"versions of the future", []string{"7.0.0"}, nil, []string{"version"}, namesFor("unknown")[1:]},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			conf := metaConfig
			conf.Skip = tt.skip
			p := newMeta().plugin()
			p.Versions = version.PluginSupports(tt.versions...)
			r := check(t, delegatetest.Program(p.Execute), conf, tt.failed...)
			nodetest.Equal(t, "not made", *r.unmade, tt.unmade)
		})
	}
}

func TestConfigsThatCannotWorkAreErrors(t *testing.T) {
	t.Parallel()
	stdin := func(string) string { return "null" }
	for want, conf := range map[string]delegatetest.Config{
		"a Config needs Stdin":        {Delegates: []string{"one"}},
		"not a JSON object":           {Stdin: stdin, Delegates: []string{"one"}},
		`the fake "two"`:              {Stdin: metaStdin, Delegates: []string{"one"}, Fakes: map[string]delegatetest.Plugin{"two": delegatetest.Result(nil)}},
		`the kind "other" is none of`: {Stdin: metaStdin, Kind: "other"},
	} {
		r := newRecorder(t.Context())
		delegatetest.Conform(r, newMeta().program(), conf)
		if len(*r.said) != 1 || len(*r.failed) != 1 || !strings.Contains((*r.said)[0], want) {
			t.Errorf("said %q, want %q", *r.said, want)
		}
	}
}

func TestAnAddThatFailsIsOneFinding(t *testing.T) {
	t.Parallel()
	conf := metaConfig
	conf.Fakes = map[string]delegatetest.Plugin{"two": delegatetest.FailOn("ADD", 11, "no free device", delegatetest.Result(nil))}
	r := check(t, newMeta().program(), conf, "add")
	ran := []string{"version", "add", "error", "error-version"}
	nodetest.Equal(t, "not made", slices.Concat(ran, *r.unmade), namesFor("meta"), cmpopts.SortSlices(strings.Compare))
	nodetest.Equal(t, "times that the cause is told", strings.Count(r.text(), "no free device"), 1)
	nodetest.Equal(t, "checks that say why they are not made", strings.Count(r.text(), "no ADD succeeds"), len(*r.unmade))
}

func TestAPluginWithoutDelegatesIsCheckedForTheRest(t *testing.T) {
	t.Parallel()
	nothing := func(context.Context, *plugin.Call) error { return nil }
	alone := plugin.Plugin{
		Check: nothing, Del: nothing, GC: nothing, Status: nothing,
		Add: func(_ context.Context, c *plugin.Call) error {
			result := json.RawMessage(fmt.Sprintf(`{"cniVersion":%q}`, c.CNIVersion))
			if err := c.Value("prevResult", &result); err != nil {
				return err
			}
			_, err := c.Stdout.Write(result)
			return err
		},
	}
	check(t, delegatetest.Program(alone.Execute), delegatetest.Config{Stdin: func(string) string { return `{"type":"alone"}` }})
}

// ip is an address that Conform's own fakes do not give.
var ip = net.IPNet{IP: net.IPv4(10, 1, 2, 3).To4(), Mask: net.CIDRMask(24, 32)}

// The plugin receives the result of the fake, and must print its address.
func TestFakesReplaceTheResultOfADelegate(t *testing.T) {
	t.Parallel()
	conf := metaConfig
	conf.Fakes = map[string]delegatetest.Plugin{
		"one": delegatetest.Result(&types100.Result{IPs: []*types100.IPConfig{{Address: ip, Gateway: net.IPv4(10, 1, 2, 1)}}}),
		"two": delegatetest.Result(nil),
	}
	check(t, newMeta().program(), conf)
	if r := check(t, newMeta("prints an empty result").program(), conf, "result"); !strings.Contains(r.text(), "10.1.2.3") {
		t.Errorf("said %s", r.text())
	}
}

func TestFindingsShowWhatDelegatesReceived(t *testing.T) {
	t.Parallel()
	if said := check(t, newMeta("drops keys").program(), metaConfig, "request").text(); !strings.Contains(said, `what arrived is {"cniVersion":"1.1.0","name":"conform","type":"one"}`) {
		t.Errorf("said %s", said)
	}
}

// Without subtests all failures are in one Errorf: Ginkgo's ends the test.
func TestConformWithoutSubtestsFailsOnce(t *testing.T) {
	t.Parallel()
	flat := newRecorder(t.Context()).flatT
	delegatetest.Conform(flat, newMeta("ignores CHECK", "own codes").program(), metaConfig)
	nodetest.Equal(t, "said", *flat.said, []string{
		"not made:", "stderr: the plugin is not a process", "del-gone: it needs real containers (NetNS)", (*flat.said)[3],
	})
	if said := (*flat.said)[3]; len(*flat.failed) != 1 || !strings.HasPrefix(said, "check-error: ") || !strings.Contains(said, "\ncode: ") {
		t.Errorf("%d failures, said %q", len(*flat.failed), said)
	}

	flat = newRecorder(t.Context()).flatT
	delegatetest.Conform(flat, newMeta().program(), metaConfig)
	nodetest.Equal(t, flat.text(), *flat.failed, nil)
}

func TestFailuresSayWhyAndWhere(t *testing.T) {
	t.Parallel()
	_, findings, err := delegatetest.Findings(t.Context(), newMeta("ignores DEL").program(), metaConfig)
	nodetest.OK(t, err)
	var all []string
	for f := range findings {
		all = append(all, f.Name)
		said := f.String()
		if failed := f.Name == "del-error"; failed != (f.Err != nil) || failed != (strings.Contains(said, f.Why) && strings.Contains(said, f.Where)) {
			t.Errorf("said %s", said)
		}
	}
	nodetest.Equal(t, "checks", all, namesFor("meta"))
}

func TestAddOfAChainedPluginGetsPrevResult(t *testing.T) {
	t.Parallel()
	path := script(t, `
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["0.2.0","0.4.0","1.0.0","1.1.0"]}' ;;
ADD) jq=$(cat); case $jq in *'"prevResult":'*) ;; *) echo '{"cniVersion":"1.1.0","code":7,"msg":"no prevResult"}'; exit 1 ;; esac
	jq=${jq#*'"prevResult":'}; echo "${jq%%,\"type\"*}" ;;
esac`)
	conf := onlyChecks(t, "version", "add", "stdout", "result", "versions", "del", "gc", "status")
	conf.Delegates, conf.Stdin = nil, func(string) string {
		return `{"type":"chained","prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0"}],"ips":[{"interface":0,"address":"10.1.0.2/24"}]}}`
	}
	delegatetest.Conform(t, delegatetest.Binary{Path: path, Env: []string{"PATH=" + os.Getenv("PATH")}}, conf)

	conf.Stdin = func(string) string { return `{"type":"chained","prevResult":{"cniVersion":"9.9.9"}}` }
	if _, _, err := delegatetest.Findings(t.Context(), delegatetest.Binary{Path: path}, conf); err == nil || !strings.Contains(err.Error(), "prevResult") {
		t.Errorf("error %v", err)
	}
}

func TestABinaryThatDoesNotEndIsAFinding(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ text, want string }{
		"hangs":                {"exec sleep 5", "did not end in time"},
		"leaves a process":     {"sleep 5 & echo $! >&2; echo '{}'", "left a process behind"},
		"its child hangs also": {"sleep 5; true", "did not end in time"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conf := metaConfig
			conf.Timeout = 100 * time.Millisecond
			if name == "leaves a process" {
				conf.Timeout = time.Minute
			}
			_, findings, err := delegatetest.Findings(t.Context(), delegatetest.Binary{
				Path: script(t, tt.text), Env: []string{"PATH=" + os.Getenv("PATH")},
			}, conf)
			nodetest.OK(t, err)
			for f := range findings {
				if f.Name != "version" || f.Err == nil || !strings.Contains(f.Err.Error(), tt.want) {
					t.Errorf("%v, want %q", f, tt.want)
				}
				break
			}
		})
	}
}

// script writes a shell script and returns its path.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "plugin")
	syscall.ForkLock.RLock() // a child of another test must not have it open for writing
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil { //nolint:gosec // to be run
		t.Fatal(err)
	}
	return path
}

// accepting returns p, which takes a configuration of another version for one that it knows.
func accepting(version string, p delegatetest.Program) delegatetest.Program {
	return func(ctx context.Context, exec delegate.Exec, env []string, stdin io.Reader, stdout, stderr io.Writer) error {
		conf, err := io.ReadAll(stdin)
		if err != nil {
			return err
		}
		return p(ctx, exec, env, bytes.NewReader(bytes.ReplaceAll(conf, []byte(`"`+version+`"`), []byte(`"1.1.0"`))), stdout, stderr)
	}
}

// printing returns p, except that end replaces what command prints, and how it ends.
func printing(command string, p delegatetest.Program, end func(out []byte, err error) ([]byte, error)) delegatetest.Program {
	return func(ctx context.Context, exec delegate.Exec, env []string, stdin io.Reader, stdout, stderr io.Writer) error {
		if !slices.Contains(env, "CNI_COMMAND="+command) {
			return p(ctx, exec, env, stdin, stdout, stderr)
		}
		var out bytes.Buffer
		err := p(ctx, exec, env, stdin, &out, stderr)
		text, err := end(out.Bytes(), err)
		_, _ = stdout.Write(text) // to memory
		return err
	}
}

// The check that fails says what the specification asks of this output.
func TestWrongOutputIsFoundInEachCommand(t *testing.T) {
	t.Parallel()
	success := func(out []byte, _ error) ([]byte, error) { return out, nil }
	replaced := func(text string) func([]byte, error) ([]byte, error) {
		return func(out []byte, err error) ([]byte, error) {
			if err != nil {
				out = []byte(text)
			}
			return out, err
		}
	}
	without := func(key string) func([]byte, error) ([]byte, error) {
		return func(out []byte, err error) ([]byte, error) {
			return bytes.Replace(out, []byte(key), []byte("other"), 1), err
		}
	}
	const object = `{"error":{"code":7,"message":"no"}}`
	for _, tt := range []struct {
		command, what string
		end           func([]byte, error) ([]byte, error)
		fails, says   string
	}{
		{"VERSION", "no cniVersion", without("cniVersion"), "version", "missing field cniVersion"},
		{"VERSION", "no supportedVersions", without("supportedVersions"), "version", "missing field supportedVersions"},
		{"ADD", "an error for a result", func([]byte, error) ([]byte, error) {
			return []byte(`{"cniVersion":"1.1.0","code":11,"msg":"not now"}`), nil
		}, "result undo error", "is an error object, and the exit status is 0"},
		{"ADD", "errors with status 0", success, "undo error", "ADD succeeds though"},
		{"CHECK", "errors with status 0", success, "check-error", "CHECK succeeds though"},
		{"DEL", "errors with status 0", success, "del-error", "DEL succeeds though"},
		{"GC", "errors with status 0", success, "gc-error", "GC succeeds though"},
		{"STATUS", "errors with status 0", success, "status-error", "STATUS succeeds though"},
		{"ADD", "another object", replaced(object), "error", "is not an error object"},
		{"CHECK", "another object", replaced(object), "error", "CHECK with half a configuration"},
		{"DEL", "a code in quotes", replaced(`{"cniVersion":"1.1.0","code":"7","msg":"no"}`), "error", "DEL with half a configuration"},
		{"GC", "nothing", replaced(""), "error", "GC with half a configuration"},
		{"STATUS", "plain text", replaced("no"), "error", "STATUS with half a configuration"},
	} {
		t.Run(tt.command+"/"+tt.what, func(t *testing.T) {
			t.Parallel()
			r := check(t, printing(tt.command, newMeta().program(), tt.end), metaConfig, strings.Fields(tt.fails)...)
			if !strings.Contains(r.text(), tt.says) {
				t.Errorf("said %s", r.text())
			}
		})
	}
}

// A plugin of any kind must refuse a version of the specification that it does not know.
func TestUnknownVersionsMustBeRefused(t *testing.T) {
	t.Parallel()
	for version, tt := range map[string]struct {
		plugin callbacks
		conf   delegatetest.Config
	}{
		"99.0.0": {newMeta(), metaConfig},
		"9.9.9":  {newPool(), delegatetest.Config{Kind: "ipam", Stdin: poolStdin}},
		"0.9.0":  {newLink("needs prevResult"), delegatetest.Config{Stdin: linkStdin(behindAnother)}},
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			check(t, accepting(version, tt.plugin.program()), tt.conf, "version-unknown")
		})
	}
}
