package delegatetest_test

import (
	"context"
	"fmt"

	"github.com/metacni/metacni/delegate/delegatetest"
)

var anyUndo = []string{"undo", "undo-killed", "undo-garbage", "undo-silence", "undo-two-documents"}

// wrong lists, for each flaw of a meta, the checks that must fail.
var wrong = map[string][]string{
	"": nil,

	"undoes nothing":               anyUndo,
	"undoes only those before":     anyUndo,
	"attaches what it can":         anyUndo,
	"forgets what printed garbage": {"undo-garbage", "undo-silence", "undo-two-documents"},
	"takes nothing for a result":   {"undo-silence"},
	"reads one document":           {"undo-two-documents"},

	"has nothing to do":         {"add-broken"},
	"panics with nothing to do": {"add-broken"},
	"refuses keys given twice":  {"del-broken"},
	"remembers results only":    {"del-broken"},
	"needs its file":            {"del-broken"},

	"needs all of its configuration": {"del-broken"},

	"prints noise":           {"stdout", "result", "versions", "add-broken"},
	"prints nothing":         {"stdout", "result", "versions", "add-broken"},
	"prints two results":     {"stdout", "result", "versions", "add-broken"},
	"prints an empty result": {"result", "versions", "chain"},
	"prints its own version": {"result", "versions"},

	"drops prevResult":               {"chain"},
	"drops interfaces of prevResult": {"chain"},
	"mixes up interfaces":            {"chain"},

	"drops keys":        {"request"},
	"drops the name":    {"request"},
	"drops the version": {"request"},
	"decodes numbers":   {"request"},
	"own environment":   {"environment"},
	"own path":          {"environment"},
	"own names":         {"environment", "gc-valid"},
	"drops CNI_ARGS":    {"environment"},
	"own codes":         {"code"},

	"deletes nothing":   {"versions", "del", "del-bare", "del-broken", "del-error", "del-retry", "concurrent"},
	"needs CNI_NETNS":   {"del-bare"},
	"needs prevResult":  {"versions", "del-unknown", "del-failed", "del-bare", "concurrent"},
	"needs state":       {"del-again", "del-unknown", "del-failed"},
	"forgets first":     {"del-retry"},
	"ignores DEL":       {"del-error"},
	"one state for all": {"concurrent"},

	"checks nothing":                   {"check", "check-error"},
	"checks without prevResult":        {"check"},
	"ignores CHECK":                    {"check-error"},
	"collects nothing":                 {"gc", "gc-error"},
	"prints in GC":                     {"gc"},
	"collects everything":              {"gc-valid"},
	"hands on attachments as they are": {"gc-valid"},
	"stops in GC":                      {"gc-error"},
	"ignores GC":                       {"gc-error"},
	"is always ready":                  {"status", "status-error"},
	"ignores STATUS":                   {"status-error"},
}

// wrongAlternatives is the same for a meta that attaches the first delegate that
// works.
var wrongAlternatives = map[string][]string{
	"":                   nil,
	"gives up at once":   nil, // the specification does not ask for more
	"undoes nothing":     anyUndo,
	"is never at a loss": append([]string{"error"}, anyUndo...),
	"own codes":          {"code"},
	"is always ready":    {"status", "status-error"},
	"ignores STATUS":     {"status-error"},
	"ignores DEL":        {"del-error"},
}

// A recorder is a TB that records failures instead of failing.
type recorder struct {
	ctx             context.Context
	name            string
	failed, skipped *[]string // names
	said            *[]string // with the reasons of what is skipped
}

func newRecorder(ctx context.Context) *recorder {
	return &recorder{ctx: ctx, failed: new([]string), skipped: new([]string), said: new([]string)}
}

func (r *recorder) Context() context.Context { return r.ctx }
func (*recorder) Helper()                    {}

func (r *recorder) Logf(format string, args ...any) {
	*r.said = append(*r.said, fmt.Sprintf(format, args...))
}

func (r *recorder) Skip(why ...any) {
	*r.skipped = append(*r.skipped, r.name)
	*r.said = append(*r.said, fmt.Sprint(why...))
}

func (r *recorder) Errorf(format string, args ...any) {
	*r.failed = append(*r.failed, r.name)
	*r.said = append(*r.said, fmt.Sprintf(format, args...))
}

func (r *recorder) Run(name string, f func(*recorder)) bool {
	before := len(*r.failed)
	below := *r
	below.name = name
	f(&below)
	return len(*r.failed) == before
}

var _ delegatetest.TB = (*recorder)(nil)
