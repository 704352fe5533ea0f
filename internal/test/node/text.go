package nodetest

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// Contains fails the test unless text has each of these words.
func Contains(tb testing.TB, what, text string, words ...string) {
	tb.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			tb.Errorf("%s: has no %q: %s", what, w, text)
		}
	}
}

// Lacks fails the test if text has one of these words.
func Lacks(tb testing.TB, what, text string, words ...string) {
	tb.Helper()
	for _, w := range words {
		if strings.Contains(text, w) {
			tb.Errorf("%s: has %q: %s", what, w, text)
		}
	}
}

// Refused fails the test unless err is an error.
func Refused(tb testing.TB, what string, err error) {
	tb.Helper()
	if err == nil {
		tb.Errorf("%s: no error", what)
	}
}

// Result returns the result of an ADD with one address, such as 10.1.0.2/24.
func Result(cidr string) *types100.Result {
	ip, err := types.ParseCIDR(cidr)
	if err != nil {
		panic(err)
	}
	return &types100.Result{CNIVersion: types100.ImplementedSpecVersion, IPs: []*types100.IPConfig{{Address: *ip}}}
}

// Cached writes the file with which libcni records, in its cache dir, that eth0 of a container is
// attached to a network. The file appears at once, for programs that read the directory meanwhile.
// Cached returns the path of the file.
func (n *Node) Cached(dir, container, network, netns string) string {
	n.Helper()
	name := Parse(network).Name()
	written := n.Write(dir+"/entry", fmt.Sprintf(
		`{"kind":"cniCacheV1","containerId":%q,"config":%q,"ifName":"eth0","networkName":%q,"netns":%q,"result":{"cniVersion":"1.0.0","ips":[]}}`,
		container, base64.StdEncoding.EncodeToString([]byte(network)), name, netns))
	entry := n.Path(dir, "results", name+"-"+container+"-eth0")
	OK(n, errors.Join(os.MkdirAll(filepath.Dir(entry), 0o700), os.Rename(written, entry)))
	return entry
}

// Section replaces what a file has between the lines <!-- name --> and <!-- end -->.
func Section(tb testing.TB, file, name, text string) {
	tb.Helper()
	old, err := os.ReadFile(file)
	OK(tb, err)
	begin := "<!-- " + name + " -->\n"
	whole := regexp.MustCompile("(?s)" + regexp.QuoteMeta(begin) + ".*?<!-- end -->")
	if len(whole.FindAll(old, -1)) != 1 {
		tb.Fatalf("%s does not have one section %q", file, name)
	}
	next := whole.ReplaceAllLiteral(old, []byte(begin+text+"<!-- end -->"))
	OK(tb, os.WriteFile(file, next, 0o600))
}
