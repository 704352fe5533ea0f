package conform_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/conform"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

var (
	_ conform.TB = (*testing.T)(nil)
	_ conform.TB = recorder{}
)

var metaConfig = conform.Config{Stdin: metaStdin, Delegates: []string{"one", "two"}, Strict: true}

// check fails t unless exactly these checks find a fault of p.
func check(t *testing.T, p conform.Target, conf conform.Config, failed ...string) recorder {
	t.Helper()
	r := newRecorder(t.Context())
	conform.Test(r, p, conf)
	nodetest.Equal(t, "failed, of "+r.text(), *r.failed, failed, cmpopts.SortSlices(strings.Compare))
	nodetest.Equal(t, "skipped, which is for what the machine lacks", *r.skipped, nil)
	return r
}

func TestPassesARightPlugin(t *testing.T) {
	t.Parallel()
	conform.Test(t, newMeta().program(), metaConfig)
}

// Test reports a plugin that forgets to undo.
func ExampleTest() {
	// In a test, t is the first argument, and each check a test below it.
	t := newRecorder(context.Background())
	plugin := newMeta("undoes only those before").program()
	conform.Test(t, plugin, conform.Config{
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
		conf  conform.Config
		wrong map[string]string
	}{
		{"all delegates", metaConfig, wrong},
		{"the first that works", conform.Config{
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
	for _, c := range conform.Checks() {
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
	for _, c := range conform.Checks() {
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
	for _, c := range conform.Checks() {
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
			r := check(t, conform.Program(p.Execute), conf, tt.failed...)
			nodetest.Equal(t, "not made", *r.unmade, tt.unmade)
		})
	}
}

// What goes wrong in a check and is not the plugin's is no failure of it: the check is skipped.
func TestChecksThatTheMachineHindersAreSkipped(t *testing.T) {
	t.Parallel()
	conf, hosts := metaConfig, 0
	conf.Stdin = func(dir string) string {
		if hosts++; hosts > 20 { // in the middle of the checks
			return "null"
		}
		return metaStdin(dir)
	}
	r := newRecorder(t.Context())
	conform.Test(r, newMeta().program(), conf)
	nodetest.Equal(t, "failed", *r.failed, nil)
	nodetest.Equal(t, "skipped or not made", slices.Concat([]string{"stderr", "del-gone"}, *r.skipped), *r.unmade, cmpopts.SortSlices(strings.Compare))
	nodetest.Equal(t, "is skipped", slices.Contains(*r.skipped, "versions"), true)
}

func TestConfigsThatCannotWorkAreErrors(t *testing.T) {
	t.Parallel()
	stdin := func(string) string { return "null" }
	for want, conf := range map[string]conform.Config{
		"a Config needs Stdin":        {Delegates: []string{"one"}},
		"not a JSON object":           {Stdin: stdin, Delegates: []string{"one"}},
		`the fake "two"`:              {Stdin: metaStdin, Delegates: []string{"one"}, Fakes: map[string]delegatetest.Fake{"two": delegatetest.Result(nil)}},
		`the kind "other" is none of`: {Stdin: metaStdin, Kind: "other"},
	} {
		r := newRecorder(t.Context())
		conform.Test(r, newMeta().program(), conf)
		if len(*r.said) != 1 || len(*r.failed) != 1 || !strings.Contains((*r.said)[0], want) {
			t.Errorf("said %q, want %q", *r.said, want)
		}
	}
}

func TestAnAddThatFailsIsOneFinding(t *testing.T) {
	t.Parallel()
	conf := metaConfig
	conf.Fakes = map[string]delegatetest.Fake{"two": delegatetest.FailOn("ADD", 11, "no free device", delegatetest.Result(nil))}
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
			_, err := c.System.Stdout.Write(result)
			return err
		},
	}
	check(t, conform.Program(alone.Execute), conform.Config{Stdin: func(string) string { return `{"type":"alone"}` }})
}

// ip is an address that Conform's own fakes do not give.
var ip = net.IPNet{IP: net.IPv4(10, 1, 2, 3).To4(), Mask: net.CIDRMask(24, 32)}

// The plugin receives the result of the fake, and must print its address.
func TestFakesReplaceTheResultOfADelegate(t *testing.T) {
	t.Parallel()
	conf := metaConfig
	conf.Fakes = map[string]delegatetest.Fake{
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
	conform.Test(flat, newMeta("ignores CHECK", "own codes").program(), metaConfig)
	nodetest.Equal(t, "said", *flat.said, []string{
		"not made:", "stderr: the plugin is not a process", "del-gone: it needs real containers (NetNS)", (*flat.said)[3],
	})
	if said := (*flat.said)[3]; len(*flat.failed) != 1 || !strings.HasPrefix(said, "check-error: ") || !strings.Contains(said, "\ncode: ") {
		t.Errorf("%d failures, said %q", len(*flat.failed), said)
	}

	flat = newRecorder(t.Context()).flatT
	conform.Test(flat, newMeta().program(), metaConfig)
	nodetest.Equal(t, flat.text(), *flat.failed, nil)
}

func TestFailuresSayWhyAndWhere(t *testing.T) {
	t.Parallel()
	_, findings, err := conform.Findings(t.Context(), newMeta("ignores DEL").program(), metaConfig)
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
	conform.Test(t, conform.Binary{Path: path, Env: []string{"PATH=" + os.Getenv("PATH")}}, conf)

	conf.Stdin = func(string) string { return `{"type":"chained","prevResult":{"cniVersion":"9.9.9"}}` }
	if _, _, err := conform.Findings(t.Context(), conform.Binary{Path: path}, conf); err == nil || !strings.Contains(err.Error(), "prevResult") {
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
			_, findings, err := conform.Findings(t.Context(), conform.Binary{
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

// script writes a shell script and returns its path. It is beside the test binary, which can be
// run there too.
func script(t *testing.T, text string) string {
	t.Helper()
	self, err := os.Executable()
	nodetest.OK(t, err)
	dir, err := os.MkdirTemp(filepath.Dir(self), "script") //nolint:usetesting // files there may be no programs
	nodetest.OK(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "plugin")
	syscall.ForkLock.RLock() // a child of another test must not have it open for writing
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil { //nolint:gosec // to be run
		t.Fatal(err)
	}
	return path
}

// accepting returns p, which takes a configuration of another version for one that it knows.
func accepting(version string, p conform.Program) conform.Program {
	return func(ctx context.Context, exec delegate.Exec, env []string, stdin io.Reader, stdout, stderr io.Writer) error {
		conf, err := io.ReadAll(stdin)
		if err != nil {
			return err
		}
		return p(ctx, exec, env, bytes.NewReader(bytes.ReplaceAll(conf, []byte(`"`+version+`"`), []byte(`"1.1.0"`))), stdout, stderr)
	}
}

// printing returns p, except that end replaces what command prints, and how it ends.
func printing(command string, p conform.Program, end func(out []byte, err error) ([]byte, error)) conform.Program {
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
		conf   conform.Config
	}{
		"99.0.0": {newMeta(), metaConfig},
		"9.9.9":  {newPool(), conform.Config{Kind: "ipam", Stdin: poolStdin}},
		"0.9.0":  {newLink("needs prevResult"), conform.Config{Stdin: linkStdin(behindAnother)}},
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			check(t, accepting(version, tt.plugin.program()), tt.conf, "version-unknown")
		})
	}
}

// A pool is a small IPAM plugin, with flaws if a test asks for them. It keeps the addresses of
// each container in a file.
type pool struct {
	flaws  []string
	stdout io.Writer
	args   *skel.CmdArgs
	conf   struct {
		CNIVersion string
		IPAM       struct {
			Dir     string
			Size    int
			Address string
		}
		Valid []types.GCAttachment `json:"cni.dev/valid-attachments"`
	}
}

func poolStdin(dir string) string {
	return fmt.Sprintf(`{"type":"bridge","ipam":{"type":"pool","dir":%q,"size":5}}`, dir)
}

// poolLock is for all pools: their commands take no time.
var poolLock sync.Mutex

func newPool(flaws ...string) callbacks {
	return func(_ context.Context, _ invoke.Exec, _ []string, stdout io.Writer) skel.CNIFuncs {
		command := func(do func(*pool) error) func(*skel.CmdArgs) error {
			return func(args *skel.CmdArgs) error {
				p := &pool{flaws: flaws, stdout: stdout, args: args}
				if err := json.Unmarshal(args.StdinData, &p.conf); err != nil {
					return types.NewError(types.ErrDecodingFailure, err.Error(), "")
				}
				poolLock.Lock()
				defer poolLock.Unlock()
				return do(p)
			}
		}
		return skel.CNIFuncs{Add: command((*pool).add), Check: command((*pool).check), Del: command((*pool).del), GC: command((*pool).gc), Status: command((*pool).status)}
	}
}

func (p *pool) has(flaw string) bool { return slices.Contains(p.flaws, flaw) }

func (p *pool) file(containerID, ifname string) string {
	if p.has("takes # for a comment") {
		ifname, _, _ = strings.Cut(ifname, "#")
	}
	return filepath.Join(p.conf.IPAM.Dir, containerID+"@"+ifname)
}

// taken returns the files, and the addresses in them.
func (p *pool) taken() (files, all []string) {
	files, _ = filepath.Glob(p.file("*", "*"))
	for _, file := range files {
		text, _ := os.ReadFile(file)
		all = append(all, string(text))
	}
	return files, all
}

// free returns an address, or nothing.
func (p *pool) free() string {
	_, taken := p.taken()
	for i := range p.conf.IPAM.Size {
		ip := fmt.Sprintf("192.0.2.%d/24", i+1)
		if !slices.Contains(taken, ip) || p.has("gives one address") {
			return ip
		}
	}
	return ""
}

func (p *pool) add() error {
	ip := p.conf.IPAM.Address
	if ip == "" {
		ip = p.free()
	}
	switch {
	case ip == "" && p.has("gives nothing"):
		_, err := fmt.Fprintf(p.stdout, `{"cniVersion":%q}`, p.conf.CNIVersion)
		return err
	case ip == "":
		return errors.New("no address is left")
	}
	if err := os.WriteFile(p.file(p.args.ContainerID, p.args.IfName), []byte(ip), 0o600); err != nil {
		return err
	}
	more := ""
	switch {
	case p.has("prints interfaces"):
		more = `,"interfaces":[{"name":"eth0"}]`
	case p.has("prints no address"):
		_, err := fmt.Fprintf(p.stdout, `{"cniVersion":%q}`, p.conf.CNIVersion)
		return err
	}
	if key, _, ok := strings.Cut(p.conf.CNIVersion, ".2"); ok && key == "0" || p.conf.CNIVersion == "0.1.0" {
		_, err := fmt.Fprintf(p.stdout, `{"cniVersion":%q,"ip4":{"ip":%q}}`, p.conf.CNIVersion, ip)
		return err
	}
	version := ""
	if strings.HasPrefix(p.conf.CNIVersion, "0.") {
		version = `"version":"4",`
	}
	_, err := fmt.Fprintf(p.stdout, `{"cniVersion":%q,"ips":[{%s"address":%q}]%s}`, p.conf.CNIVersion, version, ip, more)
	return err
}

func (p *pool) del() error {
	files, _ := p.taken()
	switch {
	case p.has("releases nothing"), p.has("needs CNI_NETNS") && p.args.Netns == "":
		return nil
	case p.has("releases all"):
		for _, file := range files {
			if err := os.Remove(file); err != nil {
				return err
			}
		}
		return nil
	case p.has("releases the first") && len(files) > 0:
		return os.Remove(files[0])
	}
	err := os.Remove(p.file(p.args.ContainerID, p.args.IfName))
	if errors.Is(err, fs.ErrNotExist) && !p.has("deletes once") {
		return nil
	}
	return err
}

func (p *pool) check() error {
	if p.has("fails CHECK") {
		return errors.New("not well")
	}
	if p.has("checks nothing") || p.conf.IPAM.Address != "" {
		return nil
	}
	_, err := os.Stat(p.file(p.args.ContainerID, p.args.IfName))
	return err
}

func (p *pool) gc() error {
	if p.has("collects nothing") {
		return nil
	}
	files, _ := p.taken()
	for _, file := range files {
		id, ifname, _ := strings.Cut(filepath.Base(file), "@")
		if !slices.Contains(p.conf.Valid, types.GCAttachment{ContainerID: id, IfName: ifname}) || p.has("collects everything") {
			if err := os.Remove(file); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *pool) status() error {
	if p.free() == "" && !p.has("is always ready") {
		return types.NewError(50, "no address is left", "")
	}
	return nil
}

// An IPAM plugin is found out in its configuration, and each of its flaws fails one check.
func TestEachFlawOfAnIPAMPluginFailsItsCheckAndNoOther(t *testing.T) {
	t.Parallel()
	for flaw, fails := range map[string]string{
		"":                    "",
		"prints interfaces":   "ipam-result",
		"prints no address":   "ipam-result",
		"gives one address":   "ipam-unique",
		"releases nothing":    "ipam-release",
		"releases all":        "ipam-release",
		"releases the first":  "ipam-release",
		"needs CNI_NETNS":     "ipam-release",
		"gives nothing":       "ipam-release",
		"fails CHECK":         "check-fresh",
		"deletes once":        "del-again",
		"checks nothing":      "check-gone",
		"collects nothing":    "ipam-gc",
		"collects everything": "ipam-gc",
		"is always ready":     "ipam-full",

		"takes # for a comment": "names",
	} {
		t.Run(flaw, func(t *testing.T) {
			t.Parallel()
			check(t, newPool(flaw).program(), conform.Config{Stdin: poolStdin, Kind: "ipam"}, strings.Fields(fails)...)
		})
	}
}

// A right IPAM plugin passes however few addresses it has.
func TestIPAMPluginMayHaveFewAddresses(t *testing.T) {
	t.Parallel()
	for size, notRun := range map[int][]string{
		1: {"ipam-unique", "ipam-gc", "concurrent"},
		3: {"concurrent"},
		9: nil,
		// A check takes 64 of them.
		100: {"ipam-release", "ipam-gc", "ipam-full"},
	} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			t.Parallel()
			r := check(t, newPool().program(), conform.Config{Kind: "ipam", Stdin: func(dir string) string {
				return strings.Replace(poolStdin(dir), `"size":5`, fmt.Sprintf(`"size":%d`, size), 1)
			}})
			nodetest.Equal(t, "not made", *r.unmade, slices.Concat([]string{"del-gone"}, notRun), cmpopts.SortSlices(strings.Compare))
		})
	}
}

// The suite knows an IPAM plugin by the name of the executable in the configuration of the
// plugin that runs it, or by its result.
func TestKindIsFoundOut(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		plugin conform.Target
		conf   conform.Config
		want   string
	}{
		{"told", newMeta().program(), conform.Config{Stdin: metaStdin, Delegates: []string{"one", "two"}, Kind: "main"}, "main"},
		{"delegates", newMeta().program(), metaConfig, "meta"},
		{"one delegate, for the address", newMeta().program(), conform.Config{Stdin: func(dir string) string {
			return fmt.Sprintf(`{"type":"m","dir":%q,"ipam":{"type":"addr"},"delegates":[{"type":"addr"}]}`, dir)
		}, Delegates: []string{"addr"}}, "main"},
		{"its type is that of ipam", newPool().program(), conform.Config{Stdin: func(dir string) string {
			return strings.Replace(poolStdin(dir), "bridge", "pool", 1)
		}}, "ipam"},
		{"addresses without an interface", newPool().program(), conform.Config{Stdin: func(dir string) string {
			return strings.Replace(poolStdin(dir), `"type":"pool"`, `"type":"other"`, 1)
		}}, "ipam"},
		{"an interface", newLink().program(), conform.Config{Stdin: linkStdin("")}, "main"},
		{"behind others only", newLink("needs prevResult").program(), conform.Config{Stdin: linkStdin("")}, "chained"},
		{"behind others, too", newLink("changes").program(), conform.Config{Stdin: linkStdin("")}, "chained"},
		{"prevResult in the configuration", newLink("changes").program(), conform.Config{Stdin: linkStdin(behindAnother)}, "chained"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			kind, _, err := conform.Findings(t.Context(), tt.plugin, tt.conf)
			nodetest.OK(t, err)
			if kind.Name != tt.want || kind.Why == "" {
				t.Errorf("taken for %q, because %s; want %q", kind.Name, kind.Why, tt.want)
			}
		})
	}
}

// newLink returns a main plugin that prints an interface, or a chained one.
func newLink(flaws ...string) callbacks {
	return func(_ context.Context, _ invoke.Exec, _ []string, stdout io.Writer) skel.CNIFuncs {
		nothing := func(*skel.CmdArgs) error { return nil }
		add := func(args *skel.CmdArgs) error {
			var conf struct {
				CNIVersion string
				PrevResult json.RawMessage
			}
			if err := json.Unmarshal(args.StdinData, &conf); err != nil {
				return err
			}
			result := fmt.Sprintf(`{"cniVersion":%q,"interfaces":[{"name":%q,"sandbox":%q}]}`, conf.CNIVersion, args.IfName, args.Netns)
			switch {
			case conf.PrevResult != nil && !slices.Contains(flaws, "drops prevResult"):
				result = string(conf.PrevResult)
				if slices.Contains(flaws, "adds an interface") {
					result = strings.Replace(result, `"interfaces":[`, `"interfaces":[{"name":"tap0"},`, 1)
					result = strings.Replace(result, `"interface":0`, `"interface":1`, 1)
				}
			case conf.PrevResult == nil && slices.Contains(flaws, "needs prevResult"):
				return errors.New("no prevResult")
			case slices.Contains(flaws, "changes"):
				result = fmt.Sprintf(`{"cniVersion":%q}`, conf.CNIVersion)
			}
			_, err := io.WriteString(stdout, result)
			return err
		}
		del := nothing
		if slices.Contains(flaws, "deletes behind others only") {
			del = func(args *skel.CmdArgs) error {
				if !strings.Contains(string(args.StdinData), `"prevResult"`) {
					return errors.New("no prevResult")
				}
				return nil
			}
		}
		return skel.CNIFuncs{Add: add, Check: nothing, Del: del, GC: nothing, Status: nothing}
	}
}

// behindAnother is a key of the configuration of a plugin for chains.
const behindAnother = `,"prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"address":"198.51.100.7/24","interface":0}]}`

// linkStdin configures a link, with more keys.
func linkStdin(more string) func(string) string {
	return func(string) string { return `{"type":"link"` + more + `}` }
}

// A plugin for chains gets a prevResult, also one that could stand alone.
func TestEachFlawOfAChainedPluginFailsItsCheckAndNoOther(t *testing.T) {
	t.Parallel()
	for flaw, fails := range map[string]string{
		"":                           "",
		"adds an interface":          "",
		"drops prevResult":           "chain",
		"deletes behind others only": "del-bare",
	} {
		t.Run(flaw, func(t *testing.T) {
			t.Parallel()
			flaws := []string{flaw}
			if flaw != "adds an interface" {
				flaws = append(flaws, "needs prevResult")
			}
			check(t, newLink(flaws...).program(), conform.Config{Stdin: linkStdin(behindAnother)}, strings.Fields(fails)...)
		})
	}
}
