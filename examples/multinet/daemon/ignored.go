package daemon

import (
	"context"
	"log/slog"
	"slices"
	"strings"
)

// A noEffect says why a key of the file has no effect.
type noEffect struct {
	why    string
	multus bool // only files of Multus's daemon have the key
}

// withoutEffect has the keys of the configuration of Multus's daemon, in lower case, that have no
// effect here.
var withoutEffect = map[string]noEffect{ //nolint:gochecknoglobals // never written
	"cniversion":          {"the version of each request counts", false},
	"type":                {"the type of each request counts", false},
	"logtostderr":         {"the log goes to stderr", true},
	"logfile":             {"the log goes to stderr", true},
	"logoptions":          {"the log goes to stderr", true},
	"pernodecertificate":  {"no certificate is requested: the daemon uses the token of its pod, or kubeconfig", true},
	"retrydeleteonerror":  {"a record is always kept until its DEL has succeeded", true},
	"forcecniversion":     {"the published network has the version of the primary network", true},
	"overridenetworkname": {"name chooses the name of the published network", true},
	"daemonsocketdir":     {"a key of the shim: the daemon's own is socketDir", false},
	"delqueuedir":         {"a key of the shim: the daemon's own is queueDir", false},
	"delpolicy":           {"a key of the shim: put it into network", false},
	"delqueuewait":        {"a key of the shim: put it into network", false},
}

// ignore notes that those of keys that the file has are without effect.
func (c *config) ignore(keys map[string]any) {
	for name := range folded(keys) {
		if key, ok := c.given[name]; ok {
			c.ignored = append(c.ignored, key)
		}
	}
	slices.Sort(c.ignored)
}

// logIgnored logs each key of the file that has no effect. A key that is not known is a
// warning: it may be misspelt.
func logIgnored(ctx context.Context, log *slog.Logger, c *config) {
	ofCluster := folded(c.cluster.Keys())
	for _, key := range c.ignored {
		level, attrs := slog.LevelWarn, []slog.Attr{slog.String("key", key)}
		name := strings.ToLower(key)
		why := withoutEffect[name].why
		if ofCluster[name] != nil {
			why = "there is no Kubernetes cluster: the daemon has neither a kubeconfig nor the token of a pod"
		}
		if why != "" {
			level, attrs = slog.LevelInfo, append(attrs, slog.String("why", why))
		}
		log.LogAttrs(ctx, level, "configuration key without effect", attrs...)
	}
	if c.repeated != "" {
		log.LogAttrs(ctx, slog.LevelWarn, "configuration key given twice, with one value: remove one", slog.String("key", c.repeated))
	}
	if c.ofMultus {
		log.LogAttrs(ctx, slog.LevelInfo, "the file is one of Multus: legacyArgs is true unless the file says otherwise")
	}
}
