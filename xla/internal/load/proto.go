package load

// Field numbers of XLA's messages, by XLA's names for the fields: xla/service/hlo.proto and
// xla/xla_data.proto as of jaxlib 0.12.0.1. What is an attribute of a text is in rules.go, and
// what only a buffer assignment has in assignment.go.

import "google.golang.org/protobuf/encoding/protowire"

type no = protowire.Number

// HloProto, whose first field a snapshot has, too, HloModuleProto and HloComputationProto.
const (
	protoHloModule, protoBufferAssignment no = 1, 3

	moduleName, moduleEntryComputationName, moduleComputations, moduleHostProgramShape no = 1, 2, 3, 4
	moduleEntryComputationID, moduleSchedule, moduleInputOutputAlias                   no = 6, 7, 8
	moduleStackFrameIndex, moduleBufferDonor, moduleFrontendAttributes                 no = 17, 18, 19

	computationName, computationInstructions, computationProgramShape, computationID no = 1, 2, 4, 5
	computationRootID, computationIsFusionComputation, computationExecutionThread    no = 6, 7, 8
)

// HloInstructionProto.
const (
	instructionName                     no = 1
	instructionOpcode                   no = 2
	instructionShape                    no = 3
	instructionLiteral                  no = 8
	instructionParameterNumber          no = 9
	instructionTupleIndex               no = 13
	instructionDimensions               no = 14
	instructionID                       no = 35
	instructionOperandIDs               no = 36
	instructionControlPredecessorIDs    no = 37
	instructionCalledComputationIDs     no = 38
	instructionBackendConfig            no = 43
	instructionReplicaGroups            no = 49 // before 2024
	instructionDomainEntrySharding      no = 54
	instructionConstrainLayout          no = 56
	instructionCollectiveDeviceList     no = 87 // before 2026
	instructionIotaCollectiveDeviceList no = 92
	instructionComparisonOrder          no = 102
)

// Messages in these: AliasEntryProto, HloScheduleProto with the entry of a map and
// InstructionSequence, FrontendAttributes, StackFrameIndexProto and ProgramShapeProto.
const (
	aliasOutputShapeIndex, aliasParameterNumber, aliasParameterShapeIndex, aliasKind no = 1, 2, 3, 4

	scheduleSequences, frontendAttributesMap, entryKey, entryValue, sequenceInstructionIDs no = 1, 1, 1, 2, 1

	framesFileNames, framesFunctionNames, framesFileLocations, framesStackFrames no = 1, 2, 3, 4

	programParameters, programResult, programParameterNames no = 1, 2, 3
)

// ShapeProto, LayoutProto, TileProto, SplitConfigProto and LiteralProto, whose fields of elements
// are in literal.go.
const (
	shapeElementType, shapeDimensions, shapeTupleShapes, shapeLayout, shapeIsDynamicDimension no = 2, 3, 4, 5, 6

	layoutMinorToMajor, layoutTiles, layoutElementSizeInBits, layoutMemorySpace, layoutDimLevelTypes no = 1, 6, 7, 8, 9
	layoutPhysicalShape, layoutIndexPrimitiveType, layoutPointerPrimitiveType                        no = 10, 11, 12
	// dynamic_shape_metadata_prefix_bytes, tail_padding_alignment_in_elements
	layoutMetadataPrefixBytes, layoutTailPaddingAlignment, layoutSplitConfigs no = 15, 16, 17

	tileDimensions, splitDimension, splitIndices, literalShape no = 1, 1, 2, 1
)

// OpSharding, and CollectiveDeviceListProto with ReplicaGroup and IotaReplicaGroupListProto.
const (
	shardingType, shardingTileAssignmentDimensions, shardingTileAssignmentDevices, shardingTupleShardings no = 1, 3, 4, 5
	shardingReplicateOnLastTileDim, shardingLastTileDims, shardingIotaReshapeDims                         no = 6, 8, 9
	shardingIotaTransposePerm, shardingIsShardGroup, shardingShardGroupID                                 no = 10, 11, 12
	shardingShardGroupType, shardingNamedSharding                                                         no = 13, 14

	listReplicaGroups, listIotaReplicaGroupList, groupReplicaIDs                     no = 1, 2, 1
	iotaNumReplicaGroups, iotaNumDevicesPerGroup, iotaReshapeDims, iotaTransposePerm no = 1, 2, 3, 4
)

// unprinted are fields of HloInstructionProto that mean something only for opcodes whose text shows
// them, or are superseded by others: 4 to 6, 10 and 12 of old releases, and 45, all_reduce_id, by
// the channel. The others are, in their order, parameter_number, dimensions, channel_id,
// feature_group_count, precision_config, constrain_layout, operand_shapes_with_layout,
// batch_group_count, comparison_direction, rng_algorithm and custom_call_api_version.
var unprinted = []no{4, 5, 6, 10, 12, 45, 9, 14, 26, 50, 51, 56, 57, 58, 63, 70, 77}
