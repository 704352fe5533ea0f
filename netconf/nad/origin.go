package nad

import (
	"cmp"
	"encoding/json"
	"strconv"
	"unicode/utf8"

	"github.com/metacni/metacni/internal/rawjson"
)

// An Origin says why a container is attached to a network. A meta-plugin records its JSON
// with the attachment, as delegate.Attachment.Origin, so that the cluster need not be asked
// for it later. The zero Origin says nothing.
type Origin struct {
	Use Use

	// Definition is the definition that the network was made of. UID and Version are
	// those that it had. They are zero for a network of the configuration or of a file.
	Definition Ref
	UID        string
	Version    string

	// Selection is what the pod has asked for: the JSON of a [netconf.Selection]. Nil
	// where no pod has asked.
	Selection json.RawMessage

	// Device is the device that the attachment has, and Resource that of the
	// definition. Both are empty where the definition names no resource.
	Resource string
	Device   string

	// Claim is what the container is attached for if Use is [UseClaimed].
	Claim Claim

	// PodSource is where the kubelet has the pod from: the value of [SourceAnnotation], if
	// known. It is "api", or another word such as "file" for a static pod. The API only has
	// a mirror of a static pod, under another UID.
	PodSource string
}

// A Claim names a device that is allocated to a ResourceClaim (resource.k8s.io/v1). The
// namespace of the claim is that of its pod.
type Claim struct {
	UID     string `json:"uid"`
	Name    string `json:"name,omitempty"`
	Request string `json:"request,omitempty"` // with the subrequest after a slash if there is one
	Pool    string `json:"pool,omitempty"`
	Device  string `json:"device,omitempty"`
	Share   string `json:"share,omitempty"` // the shareID of a device that is shared
}

// String returns the words by which people know c: the name of the claim, or else its UID, and
// the request if there is one.
func (c Claim) String() string {
	text := "claim " + strconv.Quote(cmp.Or(c.Name, c.UID))
	if c.Request != "" {
		text += ", request " + strconv.Quote(c.Request)
	}
	return text
}

// recordedOrigin is the JSON of an Origin.
type recordedOrigin struct {
	Use        Use             `json:"use,omitempty"`
	Definition string          `json:"definition,omitempty"` // "namespace/name"
	UID        string          `json:"uid,omitempty"`
	Version    string          `json:"version,omitempty"`
	Selection  json.RawMessage `json:"selection,omitempty"`
	Resource   string          `json:"resource,omitempty"`
	Device     string          `json:"device,omitempty"`
	Claim      Claim           `json:"claim,omitzero"`
	PodSource  string          `json:"podSource,omitempty"`
}

// JSON returns the JSON of o, or nil for the zero Origin. It leaves out a Definition that
// is not valid and a Selection that is not JSON: [ParseOrigin] could not read them.
func (o Origin) JSON() json.RawMessage {
	r := recordedOrigin{Use: o.Use, UID: o.UID, Version: o.Version, Resource: o.Resource, Device: o.Device, Claim: o.Claim, PodSource: o.PodSource}
	if o.Definition.Validate() == nil {
		r.Definition = o.Definition.String()
	}
	if json.Valid(o.Selection) && utf8.Valid(o.Selection) {
		r.Selection = o.Selection
	}
	if data, err := rawjson.Marshal(r); err == nil && string(data) != "{}" { // an error is impossible
		return data
	}
	return nil
}

// ParseOrigin returns the Origin of which data is the JSON, see [Origin.JSON]. For
// anything else, such as nil, damaged JSON or the origin of another program, it returns
// the zero Origin. It ignores unknown keys, and accepts any Use.
func ParseOrigin(data json.RawMessage) Origin {
	var r recordedOrigin
	if json.Unmarshal(data, &r) != nil {
		return Origin{}
	}
	o := Origin{Use: r.Use, UID: r.UID, Version: r.Version, Selection: r.Selection, Resource: r.Resource, Device: r.Device, Claim: r.Claim, PodSource: r.PodSource}
	if r.Definition != "" {
		ref, err := ParseRef(r.Definition, "")
		if err != nil {
			return Origin{}
		}
		o.Definition = ref
	}
	return o
}
