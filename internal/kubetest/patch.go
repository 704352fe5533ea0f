package kubetest

import (
	"encoding/json"
	"net/http"
)

// patch returns what a merge patch makes of an object.
func patch(old *object, mediaType string, data []byte) (*object, *failure) {
	switch {
	case mediaType != "application/merge-patch+json":
		return nil, unsupported(mediaType)
	case !json.Valid(data):
		return nil, failf(http.StatusBadRequest, "the patch is not JSON")
	}
	o := new(object)
	if err := json.Unmarshal(merge(old.text(), data), o); err != nil {
		return nil, invalid(cause{"patch", err.Error()})
	}
	return o, nil
}

// merge applies a merge patch (RFC 7386).
func merge(old, patch json.RawMessage) json.RawMessage {
	var from, to map[string]json.RawMessage
	if json.Unmarshal(patch, &from) != nil || from == nil {
		return patch
	}
	if json.Unmarshal(old, &to) != nil || to == nil {
		to = map[string]json.RawMessage{}
	}
	for key, value := range from {
		if string(value) == "null" {
			delete(to, key)
		} else {
			to[key] = merge(to[key], value)
		}
	}
	return mustMarshal(to)
}

// admit checks o, which is to replace old, and gives it what the client cannot change.
func admit(c call, o, old *object) *failure {
	if o.meta.ResourceVersion != "" && o.meta.ResourceVersion != old.meta.ResourceVersion {
		return conflict("Conflict", "the object has been modified; please apply your changes to the latest version and try again")
	}
	var causes []cause
	if o.meta.UID != "" && o.meta.UID != old.meta.UID {
		causes = append(causes, cause{"metadata.uid", "field is immutable"})
	}
	size := 0
	for key, value := range o.meta.Annotations {
		size += len(key) + len(value)
	}
	if size > 256<<10 {
		causes = append(causes, cause{"metadata.annotations", "may not be more than 262144 bytes"})
	}
	kept := "status"
	if c.status {
		kept = "spec"
	}
	delete(o.other, kept)
	if value, ok := old.other[kept]; ok {
		o.other[kept] = value
	}
	m := &o.meta
	m.Name, m.Namespace, m.UID, m.ResourceVersion = old.meta.Name, old.meta.Namespace, old.meta.UID, old.meta.ResourceVersion
	m.CreationTimestamp, m.DeletionTimestamp = old.meta.CreationTimestamp, old.meta.DeletionTimestamp
	o.other["kind"], o.other["apiVersion"] = old.other["kind"], old.other["apiVersion"]
	if len(causes) > 0 {
		return invalid(causes...)
	}
	return nil
}
