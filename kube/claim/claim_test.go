package claim

import (
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const nvidia = NVIDIA

// result is a device of a claim; memory "" consumes none.
func result(request, driver, device, share, memory string) resourcev1.DeviceRequestAllocationResult {
	r := resourcev1.DeviceRequestAllocationResult{Request: request, Driver: driver, Pool: "n1", Device: device}
	if share != "" {
		u := types.UID(share)
		r.ShareID = &u
	}
	if memory != "" {
		r.ConsumedCapacity = map[resourcev1.QualifiedName]resource.Quantity{Memory: resource.MustParse(memory)}
	}
	return r
}

func claimOf(results ...resourcev1.DeviceRequestAllocationResult) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: "u"}}
	c.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: results}}
	return c
}

func TestShares(t *testing.T) {
	admin, plain := result("gpu", nvidia, "gpu-0", "s", "4Gi"), result("gpu", nvidia, "gpu-0", "s", "4Gi")
	yes, no := true, false
	admin.AdminAccess, plain.AdminAccess = &yes, &no
	long := strings.Repeat("s", 128)
	gpu0 := Device{nvidia, "n1", "gpu-0"}
	for _, c := range []struct {
		name  string
		claim *resourcev1.ResourceClaim
		want  []Share
		err   string
	}{
		{"no allocation", &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c"}}, nil, "claim default/c has no allocation yet"},
		{"what was consumed, not requested", claimOf(result("gpu", nvidia, "gpu-0", "s", "1280Mi")), []Share{{gpu0, "s", "gpu", 1280 << 20}}, ""},
		{"NVIDIA's mode unlimited: 0 bytes", claimOf(result("gpu", nvidia, "gpu-0", "s", "0")), []Share{{gpu0, "s", "gpu", 0}}, ""},
		{"a whole device", claimOf(result("gpu", nvidia, "gpu-0", "", "")), []Share{{gpu0, "u-gpu-0", "gpu", 0}}, ""},
		{"another driver's", claimOf(result("nic", "net.example.com", "eth0", "s", "1Gi")), nil, ""},
		{"admin access", claimOf(admin), nil, ""},
		{"admin access refused", claimOf(plain), []Share{{gpu0, "s", "gpu", 4 << 30}}, ""},
		{"our driver's", claimOf(result("gpu", Own, "gpu-0", "s", "1Gi")), []Share{{Device{Own, "n1", "gpu-0"}, "s", "gpu", 1 << 30}}, ""},
		{"two shares of one GPU", claimOf(result("a", nvidia, "gpu-0", "s1", "2Gi"), result("b", nvidia, "gpu-0", "s2", "3Gi")), []Share{{gpu0, "s1", "a", 2 << 30}, {gpu0, "s2", "b", 3 << 30}}, ""},
		{"no share ID", claimOf(result("gpu", nvidia, "gpu-0", "", "1Gi")), []Share{{gpu0, "u-gpu-0", "gpu", 1 << 30}}, ""},
		{"below 0", claimOf(result("gpu", nvidia, "gpu-0", "s", "-1Gi")), nil, "consumed -1Gi"},
		{"a share that is a path", claimOf(result("gpu", nvidia, "gpu-0", "../x", "1Gi")), nil, "is no name"},
		{"a share as long as a file's name may be", claimOf(result("gpu", nvidia, "gpu-0", long, "1Gi")), []Share{{gpu0, long, "gpu", 1 << 30}}, ""},
		{"a longer one", claimOf(result("gpu", nvidia, "gpu-0", long+"s", "1Gi")), nil, "is no name"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Shares(c.claim, []string{NVIDIA, Own})
			if !reflect.DeepEqual(got, c.want) || !says(err, c.err) {
				t.Fatalf("got %v, %v", got, err)
			}
		})
	}
}

func says(err error, want string) bool {
	return want == "" && err == nil || want != "" && err != nil && strings.Contains(err.Error(), want)
}

func pod() *corev1.Pod {
	name, generated := "shared", "p-train-x7k2p"
	wants := func(c ...corev1.ResourceClaim) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Claims: c}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"},
		Spec: corev1.PodSpec{
			ResourceClaims: []corev1.PodResourceClaim{{Name: "byname", ResourceClaimName: &name}, {Name: "train"}, {Name: "unneeded"}, {Name: "late"}},
			InitContainers: []corev1.Container{{Name: "init", Resources: wants(corev1.ResourceClaim{Name: "byname"})}},
			Containers: []corev1.Container{
				{Name: "both", Resources: wants(corev1.ResourceClaim{Name: "byname"}, corev1.ResourceClaim{Name: "train", Request: "a"})},
				{Name: "none"},
				{Name: "unneeded", Resources: wants(corev1.ResourceClaim{Name: "unneeded"})},
				{Name: "late", Resources: wants(corev1.ResourceClaim{Name: "late"})},
				{Name: "wrong", Resources: wants(corev1.ResourceClaim{Name: "nothere"})},
			},
			EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}}, {EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "probe", Resources: wants(corev1.ResourceClaim{Name: "byname"})}}},
		},
		Status: corev1.PodStatus{
			ResourceClaimStatuses: []corev1.PodResourceClaimStatus{{Name: "train", ResourceClaimName: &generated}, {Name: "unneeded"}},
			ExtendedResourceClaimStatus: &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "p-ext",
				RequestMappings: []corev1.ContainerExtendedResourceRequest{{ContainerName: "none", ResourceName: "example.com/gpu", RequestName: "request-0"}}},
		},
	}
}

func TestUses(t *testing.T) {
	for _, c := range []struct {
		container string
		want      []Use
		err       string
	}{
		{"init", []Use{{"shared", ""}}, ""},
		{"both", []Use{{"shared", ""}, {"p-train-x7k2p", "a"}}, ""},
		{"none", []Use{{"p-ext", "request-0"}}, ""}, // an extended resource
		{"unneeded", nil, ""},
		{"debug", nil, ""},
		{"probe", []Use{{"shared", ""}}, ""},
		{"late", nil, `its claim "late" has no name yet`},
		{"wrong", nil, `it has no claim "nothere"`},
		{"other", nil, `has no container "other"`},
	} {
		t.Run(c.container, func(t *testing.T) {
			got, err := Uses(pod(), c.container)
			if !reflect.DeepEqual(got, c.want) || !says(err, c.err) {
				t.Fatalf("got %v, %v", got, err)
			}
		})
	}
}

func TestLeases(t *testing.T) {
	gpu := func(n string) Device { return Device{nvidia, "n1", n} }
	shares := []Share{
		{gpu("gpu-1"), "s3", "c", 5}, {gpu("gpu-0"), "s2", "b", 3}, {gpu("gpu-0"), "s1", "a/sub", 2}, {gpu("gpu-0"), "s4", "uncounted", 0},
	}
	for _, c := range []struct {
		name string
		use  []Use
		want []Lease
	}{
		{"two GPUs, the second first", []Use{{"c", "c"}, {"c", "a"}, {"c", "b"}}, []Lease{{gpu("gpu-0"), []string{"s1", "s2"}, 5}, {gpu("gpu-1"), []string{"s3"}, 5}}},
		{"nothing counted", []Use{{"c", "uncounted"}}, nil},
		{"counted and not, of one GPU", []Use{{"c", "uncounted"}, {"c", "b"}}, []Lease{{gpu("gpu-0"), []string{"s2"}, 3}}},
		{"one request", []Use{{"c", "b"}}, []Lease{{gpu("gpu-0"), []string{"s2"}, 3}}},
		{"a request with subrequests", []Use{{"c", "a"}}, []Lease{{gpu("gpu-0"), []string{"s1"}, 2}}},
		{"named twice", []Use{{"c", "a"}, {"c", "b"}, {"c", "a"}}, []Lease{{gpu("gpu-0"), []string{"s1", "s2"}, 5}}},
		{"no such request", []Use{{"c", "z"}}, nil},
		{"all requests", []Use{{"c", ""}}, []Lease{{gpu("gpu-0"), []string{"s1", "s2"}, 5}, {gpu("gpu-1"), []string{"s3"}, 5}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var of []Share
			for _, u := range c.use {
				of = append(of, u.Of(shares)...)
			}
			got, err := Leases(of)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Fatalf("got %+v", got)
			}
			if len(got) == 2 && got[0].Key() != "s1+s2" {
				t.Errorf("key %q", got[0].Key())
			}
		})
	}
}

func TestLeaseBesideAWholeGPU(t *testing.T) {
	_, err := Leases([]Share{{Device{nvidia, "n1", "gpu-0"}, "s1", "a", 2}, {Device{nvidia, "n1", "gpu-1"}, "s2", "b", 0}})
	if !says(err, "a lease on gpu.nvidia.com/n1/gpu-0 and all of gpu.nvidia.com/n1/gpu-1") {
		t.Fatal(err)
	}
}

func TestUIDs(t *testing.T) {
	const u = "6f1c2a52-1111-4222-8333-0123456789ab"
	got := UIDs([]string{"k8s.gpu.nvidia.com/claim=" + u + "-gpu-0", "k8s.gpu.nvidia.com/claim=" + u + "-gpu-1", "nvidia.com/gpu=all", "nvidia.com/gpu=GPU-" + u, "nvidia.com/mig=MIG-" + u, "vendor.example/" + u + "=x", "vendor.example/x=y-7" + u[1:], u})
	if !reflect.DeepEqual(got, []string{u}) {
		t.Fatalf("got %q", got)
	}
}

func TestNamed(t *testing.T) {
	for driver, want := range map[string]bool{NVIDIA: true, Own: true, "gpu.example.com": false, "": false} {
		if Named(driver) != want {
			t.Errorf("%q: %t", driver, !want)
		}
	}
}
